/* STREAM-like sweeps and an FMA loop in C, the yardstick for Mansard's own kernels.
 *
 * One command per line on stdin, one line of rates on stdout:
 *   mem VARIANT MIX STORE PAGE THREADS BYTES REPEATS SAMPLES ROOM PLACE   bytes per second of each sample
 *   fma DTYPE THREADS STEPS SAMPLES                            FLOP per second of each sample
 * VARIANT is `plain` (ordinary loops, vectorised by the compiler) or `vector` (64-byte vectors, 8 per turn).
 * STORE is `regular` or `streaming` (non-temporal), PAGE `4k` or `huge`, BYTES the working set of one thread.
 * ROOM is the buffer of one thread; the working set lies at its PLACE-th part of whole 2 MiB pages.
 * Bytes are counted as STREAM counts them: each touched array once.
 *
 * Build: gcc -O3 -march=native -fopenmp-simd -pthread stream.c -o stream
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef float vec __attribute__((vector_size(64), aligned(64)));
typedef double dvec __attribute__((vector_size(64), aligned(64)));
enum { MAX_THREADS = 256, TURN = 128 /* floats: 8 vectors of 64 bytes */ };
static const char *MIXES[] = {"read", "write", "copy", "scale", "add", "triad", "in_place"};
static const int ARRAYS[] = {1, 1, 2, 2, 3, 3, 1}, COUNTED[] = {1, 1, 2, 2, 3, 3, 2};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

#define CLOBBER __asm__ volatile("" ::: "memory")
#define PLAIN(name, statement)                                                                        \
  static float name(float *c, float *a, float *b, long n, float s) {                                  \
    (void)a, (void)b, (void)s;                                                                        \
    _Pragma("GCC ivdep") for (long i = 0; i < n; i++) statement;                                      \
    return 0;                                                                                         \
  }
PLAIN(plain_write, c[i] = s)
PLAIN(plain_copy, c[i] = a[i])
PLAIN(plain_scale, c[i] = s * a[i])
PLAIN(plain_add, c[i] = a[i] + b[i])
PLAIN(plain_triad, c[i] = a[i] + s * b[i])
PLAIN(plain_in_place, c[i] = s * c[i])
static float plain_read(float *c, float *a, float *b, long n, float s) {
  (void)c, (void)b, (void)s;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (long i = 0; i < n; i++) sum += a[i];
  return sum;
}

static inline void stream_store(vec *to, vec value) {
#if defined(__AVX512F__)
  __builtin_ia32_movntps512((float *)to, value);
#elif defined(__AVX__)
  typedef float half __attribute__((vector_size(32)));
  union { vec whole; half part[2]; } u = {value};
  __builtin_ia32_movntps256((float *)to, u.part[0]);
  __builtin_ia32_movntps256((float *)to + 8, u.part[1]);
#elif defined(__SSE__)
  typedef float quarter __attribute__((vector_size(16)));
  union { vec whole; quarter part[4]; } u = {value};
  for (int k = 0; k < 4; k++) __builtin_ia32_movntps((float *)to + 4 * k, u.part[k]);
#else
  *to = value;
#endif
}
static inline void plain_store(vec *to, vec value) { *to = value; }
static inline void drain(void) {
#if defined(__SSE__)
  __builtin_ia32_sfence();
#else
  atomic_thread_fence(memory_order_seq_cst);
#endif
}

#define VECTOR(name, put, expression)                                                                 \
  static float name(float *c, float *a, float *b, long n, float s) {                                  \
    (void)a, (void)b, (void)s;                                                                        \
    vec sv = s - (vec){0};                                                                            \
    (void)sv;                                                                                         \
    for (long i = 0; i < n; i += TURN) {                                                              \
      vec *C = (vec *)(c + i), *A = (vec *)(a + i), *B = (vec *)(b + i);                              \
      (void)A, (void)B;                                                                               \
      _Pragma("GCC unroll 8") for (int k = 0; k < 8; k++) put(C + k, expression);                     \
    }                                                                                                 \
    return 0;                                                                                         \
  }
#define BOTH(name, expression)                      \
  VECTOR(vector_##name, plain_store, expression)    \
  VECTOR(streaming_##name, stream_store, expression)
BOTH(write, sv)
BOTH(copy, A[k])
BOTH(scale, sv *A[k])
BOTH(add, A[k] + B[k])
BOTH(triad, A[k] + sv * B[k])
BOTH(in_place, sv *C[k])
static float vector_read(float *c, float *a, float *b, long n, float s) {
  (void)c, (void)b, (void)s;
  vec sum[8] = {{0}};
  for (long i = 0; i < n; i += TURN) {
    vec *A = (vec *)(a + i);
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) sum[k] += A[k];
  }
  float total = 0;
  for (int k = 1; k < 8; k++) sum[0] += sum[k];
  for (int k = 0; k < 16; k++) total += sum[0][k];
  return total;
}

typedef float (*sweep)(float *, float *, float *, long, float);
static const sweep PLAIN_SWEEPS[] = {plain_read, plain_write, plain_copy, plain_scale, plain_add, plain_triad, plain_in_place};
static const sweep VECTOR_SWEEPS[] = {vector_read,  vector_write, vector_copy,    vector_scale,
                                      vector_add,   vector_triad, vector_in_place};
static const sweep STREAMING_SWEEPS[] = {vector_read,   streaming_write, streaming_copy,    streaming_scale,
                                         streaming_add, streaming_triad, streaming_in_place};

/* Twelve independent chains of 16 float or 8 double lanes. */
#define FMA(name, kind, scalar)                                                                       \
  static float name(long n, scalar x, scalar y) {                                                     \
    kind X = x - (kind){0}, Y = y - (kind){0}, p[12];                                                 \
    for (int k = 0; k < 12; k++) p[k] = (scalar)k - (kind){0};                                        \
    for (long i = 0; i < n; i++) {                                                                    \
      _Pragma("GCC unroll 12") for (int k = 0; k < 12; k++) p[k] = p[k] * X + Y;                      \
    }                                                                                                 \
    float total = 0;                                                                                  \
    for (int k = 1; k < 12; k++) p[0] += p[k];                                                        \
    for (unsigned k = 0; k < 64 / sizeof(scalar); k++) total += (float)p[0][k];                       \
    return total;                                                                                     \
  }
FMA(fma_f32, vec, float)
FMA(fma_f64, dvec, double)

struct buffer { char *base; size_t size; };
static struct buffer buffers[2][MAX_THREADS];

static char *get(int thread, int huge, size_t size) {
  struct buffer *b = &buffers[huge][thread];
  if (b->size < size) {
    if (b->base) munmap(b->base, b->size);
    const size_t page = 2 << 20, whole = (size + page - 1) / page * page;
    char *raw = mmap(0, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) exit(3);
    madvise(raw, whole + page, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    b->base = (char *)(((uintptr_t)raw + page - 1) / page * page);
    b->size = whole;
    for (size_t i = 0; i < whole / 4; i++) ((float *)b->base)[i] = 1.0f;
  }
  return b->base;
}

static struct {
  int fma, mix, streaming, plain, huge, threads, samples, f64;
  long bytes, repeats, room, place, cpus[MAX_THREADS];
} job;
static atomic_long arrived;
static double started[MAX_THREADS][64], ended[MAX_THREADS][64];
static volatile float sink[MAX_THREADS];

static void meet(long target) {
  atomic_fetch_add(&arrived, 1);
  while (atomic_load(&arrived) < target) {
  }
}

static void *work(void *argument) {
  const long id = (long)argument;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(job.cpus[id], &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  const int arrays = ARRAYS[job.mix];
  const long each = job.bytes / arrays / 1024 * 1024;
  const long step = (job.bytes + (2 << 20) - 1) >> 21 << 21, parts = job.room / step > 1 ? job.room / step : 1;
  char *base = job.fma ? 0 : get(id, job.huge, job.room) + job.place % parts * step;
  float *c = (float *)base, *a = job.mix == 0 ? c : (float *)(base + each), *b = (float *)(base + 2 * each);
  if (arrays == 1) a = c;
  if (arrays < 3) b = a;
  const sweep run = job.plain ? PLAIN_SWEEPS[job.mix] : job.streaming ? STREAMING_SWEEPS[job.mix] : VECTOR_SWEEPS[job.mix];
  for (int k = 0; k < job.samples; k++) {
    float total = 0;
    meet((long)(k + 1) * job.threads);
    started[id][k] = now();
    if (job.fma)
      total = job.f64 ? fma_f64(job.repeats, 0.999, 1e-6) : fma_f32(job.repeats, 0.999f, 1e-6f);
    else
      for (long r = 0; r < job.repeats; r++) {
        total += run(c, a, b, each / 4, job.mix == 6 ? 1.0f : 0.5f);
        CLOBBER;
      }
    drain();
    ended[id][k] = now();
    sink[id] = total;
  }
  return 0;
}

int main(void) {
  char line[256], word[5][32];
  cpu_set_t mask;
  sched_getaffinity(0, sizeof mask, &mask);
  for (int cpu = 0, n = 0; cpu < CPU_SETSIZE && n < MAX_THREADS; cpu++)
    if (CPU_ISSET(cpu, &mask)) job.cpus[n++] = cpu;
  while (fgets(line, sizeof line, stdin)) {
    double work_done;
    if (sscanf(line, "mem %31s %31s %31s %31s %d %ld %ld %d %ld %ld", word[0], word[1], word[2], word[3], &job.threads, &job.bytes,
               &job.repeats, &job.samples, &job.room, &job.place) == 10) {
      job.fma = 0, job.mix = -1;
      for (int m = 0; m < 7; m++)
        if (!strcmp(word[1], MIXES[m])) job.mix = m;
      if (job.mix < 0) return 2;
      job.plain = !strcmp(word[0], "plain"), job.streaming = !strcmp(word[2], "streaming"), job.huge = !strcmp(word[3], "huge");
      work_done = (double)COUNTED[job.mix] * (job.bytes / ARRAYS[job.mix] / 1024 * 1024) * job.repeats * job.threads;
    } else if (sscanf(line, "fma %31s %d %ld %d", word[0], &job.threads, &job.repeats, &job.samples) == 4) {
      job.fma = 1, job.mix = 0, job.f64 = !strcmp(word[0], "f64");
      work_done = 2.0 * (job.f64 ? 8 : 16) * 12 * job.repeats * job.threads;
    } else
      return 2;
    if (job.threads > MAX_THREADS || job.samples > 64) return 2;
    atomic_store(&arrived, 0);
    pthread_t team[MAX_THREADS];
    for (long i = 0; i < job.threads; i++) pthread_create(&team[i], 0, work, (void *)i);
    for (long i = 0; i < job.threads; i++) pthread_join(team[i], 0);
    for (int k = 0; k < job.samples; k++) {
      double first = started[0][k], last = ended[0][k];
      for (int i = 1; i < job.threads; i++) {
        if (started[i][k] < first) first = started[i][k];
        if (ended[i][k] > last) last = ended[i][k];
      }
      printf("%.6e ", work_done / (last - first));
    }
    printf("\n");
    fflush(stdout);
  }
  return 0;
}
