"use strict";
// The roofline. All text from a profile goes through `safe`: the charting library reads a few tags in its texts.
var mansardChart = (function () {
  var SYMBOLS = { compute: "circle", memory: "square", network: "diamond", host: "triangle-up", latency: "triangle-down", undetermined: "circle-open" };
  var FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif';
  var host, data, ops, onPick, all = false, dtype = "", worked = [];

  function safe(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }
  function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function log(v) { return Math.log10(v); }
  function wrap(text, width) {
    var lines = [], current = "";
    String(text).split(" ").forEach(function (word) {
      while (word.length > width) { if (current) { lines.push(current); current = ""; } lines.push(word.slice(0, width)); word = word.slice(width); }
      if (current && current.length + word.length + 1 > width) { lines.push(current); current = word; } else { current = current ? current + " " + word : word; }
    });
    if (current) { lines.push(current); }
    return lines.map(safe).join("<br>");
  }

  function drawn() { return data.lines.filter(visible); }
  // At first the roofs of the element types that operators work in, where any is known; "*" is every type.
  function visible(l) { return (all || l.main || l.used || l.beside) && (l.slanted || ofType(l.dtype)); }
  function ofType(d) { return dtype === "*" || (dtype ? d === dtype : all || !worked.length || worked.indexOf(d) >= 0); }

  function lineTrace(line) {
    var roofs = drawn().filter(function (l) { return !l.slanted; }).map(function (l) { return l.value; });
    var slopes = drawn().filter(function (l) { return l.slanted; }).map(function (l) { return l.value; });
    var top = roofs.length ? Math.max.apply(null, roofs) : null, steep = slopes.length ? Math.max.apply(null, slopes) : null;
    var low = data.x_range[0] / 1e3, high = data.x_range[1] * 1e3, xs = [], ys = [], steps = line.main ? 160 : 60, from = low, to = high;
    if (line.slanted && top !== null) { to = top / line.value; }
    if (!line.slanted && steep !== null) { from = line.value / steep; }
    if (from >= to) { from = to / 1.001; }
    for (var i = 0; i <= steps; i++) {
      var x = Math.pow(10, log(from) + (log(to) - log(from)) * i / steps);
      xs.push(x); ys.push(line.slanted ? x * line.value : line.value);
    }
    return {
      x: xs, y: ys, mode: "lines", name: safe(line.label), meta: "ceiling", showlegend: false, type: "scatter",
      visible: visible(line), opacity: line.main ? 1 : line.used || line.beside ? .6 : .35,
      line: { color: line.used ? css("--ink") : css("--faint"), width: line.used && line.main ? 2 : 1, dash: { measured: "solid", derived: "dash", declared: "dot" }[line.kind] },
      hoverinfo: "text", hovertext: xs.map(function () { return wrap(line.text, 60); })
    };
  }

  function pointText(point) {
    var o = ops[point.i], rows = ["<b>" + wrap(o.name, 60) + "</b>"];
    function add(label, value) { if (value) { rows.push(label + ": " + wrap(value, 64).replace(/<br>/g, "<br>   ")); } }
    add("time", o.t.time + " per step (" + o.t.step + "), " + o.t.calls + " calls");
    add("shape", o.shapes);
    add("work", o.work); add("bytes", o.t.bytes); add("FLOP/byte", o.t.fpb);
    add("achieved", point.rate);
    add("ceiling", o.ceiling);
    add("share of ceiling", o.t.share); add("headroom", o.t.headroom + " per step");
    add("counted as", o.formula);
    if (point.edge) { rows.push("<i>drawn at the edge of the chart, it lies beyond it</i>"); }
    return rows.join("<br>");
  }

  // Where a memory line meets a roof.
  function ridgeTrace() {
    var mine = data.ridges.filter(function (r) { return ofType(r[2]); });
    return mine.length ? [{
      x: mine.map(function (r) { return r[0]; }), y: mine.map(function (r) { return r[1]; }), mode: "markers", type: "scatter", name: "ridge points", meta: "ridges",
      showlegend: false, marker: { symbol: "x-thin-open", size: 7, color: css("--soft"), line: { width: 1.4, color: css("--soft") } }, hoverinfo: "text", hovertext: mine.map(function (r) { return "ridge: " + wrap(r[3], 60); })
    }] : [];
  }
  function longestTime() { return Math.max.apply(null, data.points.map(function (p) { return ops[p.i].v.time; }).concat([1e-30])); }
  function markerSize(p, longest) { return Math.max(7, (host.clientWidth < 560 ? 18 : 24) * Math.sqrt(ops[p.i].v.time / longest)); }

  function pointTraces() {
    var longest = longestTime();
    return Object.keys(SYMBOLS).map(function (bound) {
      var mine = data.points.filter(function (p) { return ops[p.i].bound === bound; });
      return {
        x: mine.map(function (p) { return p.x; }), y: mine.map(function (p) { return p.y; }), mode: "markers", type: "scatter",
        name: bound, meta: "operators", showlegend: false, customdata: mine.map(function (p) { return p.i; }),
        text: mine.map(function (p) { return safe(ops[p.i].name); }),
        marker: {
          symbol: SYMBOLS[bound], color: css("--" + bound), opacity: .72,
          size: mine.map(function (p) { return markerSize(p, longest); }),
          line: { color: bound === "undetermined" ? css("--undetermined") : css("--card"), width: bound === "undetermined" ? 2 : 1 }
        },
        hoverinfo: "text", hovertext: mine.map(pointText)
      };
    }).filter(function (t) { return t.x.length; });
  }

  // Pixel helpers on the axes as they are now.
  function scales(layout) {
    var full = host._fullLayout, xr = full.xaxis.range, yr = full.yaxis.range, w = full.xaxis._length, h = full.yaxis._length;
    return {
      w: w, h: h, xr: xr, yr: yr,
      px: function (x) { return (log(x) - xr[0]) / (xr[1] - xr[0]) * w; },
      py: function (y) { return (1 - (log(y) - yr[0]) / (yr[1] - yr[0])) * h; },
      x: function (px) { return xr[0] + px / w * (xr[1] - xr[0]); },
      y: function (py) { return yr[0] + (1 - py / h) * (yr[1] - yr[0]); }
    };
  }

  function annotations() {
    var s = scales(), notes = [], boxes = [], small = s.w < 420, size = small ? 10 : 11.5;
    function free(b) {
      return b.x0 >= 0 && b.x1 <= s.w && b.y0 >= 0 && b.y1 <= s.h && boxes.every(function (o) { return b.x1 < o.x0 || b.x0 > o.x1 || b.y1 < o.y0 || b.y0 > o.y1; });
    }
    function note(text, px, py, extra) {
      notes.push(Object.assign({ text: text, x: s.x(px), y: s.y(py), xref: "x", yref: "y", showarrow: false, font: { size: size, family: FONT } }, extra));
    }
    // Roofs: each name stands on its own line, at the right end; where another name stands there already, left of that.
    data.lines.filter(function (l) { return l.main && !l.slanted && visible(l); }).forEach(function (line) {
      var at = s.py(line.value), width = (line.short.length + 1) * size * .56, bottom = at - 1, right = s.w - 4;
      if (at < 0 || at > s.h) { return; }
      function taken() {
        return boxes.filter(function (o) { return right > o.x0 && right - width < o.x1 && bottom > o.y0 && bottom - size - 3 < o.y1; });
      }
      for (var hit = taken(); hit.length; hit = taken()) { right = Math.min.apply(null, hit.map(function (o) { return o.x0; })) - 8; }
      if (right - width < 0) { return; }
      boxes.push({ x0: right - width, x1: right, y0: bottom - size - 3, y1: bottom });
      note(safe(line.short), right, bottom, { xanchor: "right", yanchor: "bottom", bgcolor: css("--card"), opacity: .92, borderpad: 0, font: { size: size, family: FONT, color: line.used ? css("--ink") : css("--faint") } });
    });
    // Memory lines: names along the slope, near the lower left.
    var angle = -Math.atan2(s.h / (s.yr[1] - s.yr[0]), s.w / (s.xr[1] - s.xr[0]));
    var before = null;
    data.lines.filter(function (l) { return l.main && l.slanted; }).forEach(function (line) {
      var length = line.short.length * size * .54, start = data.lane ? s.px(data.lane) + 26 : 8;
      var y0 = s.py(line.value * Math.pow(10, s.x(start)));
      // Lines that run close together carry their names one after the other.
      if (before && before.y - y0 < 15 / Math.cos(angle)) { start = before.end + 14; y0 = s.py(line.value * Math.pow(10, s.x(start))); }
      before = { y: s.py(line.value * Math.pow(10, s.x(data.lane ? s.px(data.lane) + 26 : 8))), end: start + Math.cos(angle) * length };
      if (y0 > s.h - 6) { start += (y0 - s.h + 6) / Math.tan(-angle); y0 = s.h - 6; }
      var cx = start + Math.cos(angle) * length / 2, cy = y0 + Math.sin(angle) * length / 2;
      if (cx > s.w || cy < 8) { return; }
      note(safe(line.short), cx + Math.sin(angle) * 9, cy - Math.cos(angle) * 9, { textangle: angle * 180 / Math.PI, font: { size: size, family: FONT, color: line.used ? css("--ink") : css("--faint") } });
      for (var k = 0; k <= 8; k++) { var bx = start + Math.cos(angle) * length * k / 8, by = y0 + Math.sin(angle) * length * k / 8; boxes.push({ x0: bx - 6, x1: bx + 6, y0: by - 18, y1: by }); }
    });
    // Operators: the longest first, each beside its mark where there is room.
    var longest = longestTime(), named = 0, most = small ? 4 : 12;
    data.points.forEach(function (p) { var x = s.px(p.x), y = s.py(p.y); var r = markerSize(p, longest) / 2; boxes.push({ x0: x - r, x1: x + r, y0: y - r, y1: y + r }); });
    data.points.forEach(function (p) {
      if (named >= most) { return; }
      var text = ops[p.i].label, width = text.length * size * .56 + 4, x = s.px(p.x), y = s.py(p.y);
      if (x < 0 || x > s.w || y < 0 || y > s.h) { return; }
      var gap = 14, spots = [];
      [[1, 0], [-1, 0], [1, 1], [-1, 1], [0, 1], [1, 2], [-1, 2], [0, 2], [1, 3], [-1, 3], [0, 3], [-1, 4], [0, 4], [-1, 5], [0, 5]].forEach(function (d) {
        spots.push({ cx: x + d[0] * (gap + width / 2), cy: y + d[1] * (size + 5) + (d[0] === 0 ? 8 : 0), far: d[1] > 1 });
      });
      for (var i = 0; i < spots.length; i++) {
        var c = spots[i], box = { x0: c.cx - width / 2, x1: c.cx + width / 2, y0: c.cy - size / 2 - 2, y1: c.cy + size / 2 + 2 };
        if (free(box)) {
          boxes.push(box); named++;
          var leader = c.far ? { showarrow: true, arrowhead: 0, arrowwidth: .8, arrowcolor: css("--faint"), ax: c.cx - x, ay: c.cy - y } : null;
          if (leader) { note(safe(text), x, y, Object.assign(leader, { bgcolor: css("--card"), borderpad: 1, font: { size: size, family: FONT, color: css("--soft") } })); }
          else { note(safe(text), c.cx, c.cy, { bgcolor: small || p.lane ? undefined : css("--card"), opacity: .9, font: { size: size, family: FONT, color: css("--soft") } }); }
          break;
        }
      }
    });
    if (data.lane) {
      note("no FLOP", s.px(data.lane), 2, { yanchor: "top", font: { size: size, family: FONT, color: css("--faint") } });
    }
    // Long leaders first: what is drawn later covers them, so no line runs through a name.
    return notes.map(function (n, i) { return { n: n, far: Math.abs(n.ay || 0), i: i }; })
      .sort(function (a, b) { return b.far - a.far || a.i - b.i; }).map(function (m) { return m.n; });
  }

  function layout() {
    var small = host.clientWidth < 560, axis = {
      type: "log", gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, showline: true, ticks: "outside", tickcolor: css("--line"), dtick: 1,
      minor: { ticks: "", showgrid: false }, tickfont: { size: 12, color: css("--soft") }, exponentformat: "SI", fixedrange: small
    };
    return {
      width: host.clientWidth, height: host.clientHeight, autosize: false,
      margin: { l: small ? 48 : 64, r: 14, t: 34, b: 48 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      font: { family: FONT, color: css("--ink"), size: 12.5 }, hovermode: "closest", dragmode: small ? false : "zoom", hoverdistance: 12,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--accent") },
      hoverlabel: { align: "left", bgcolor: css("--card"), bordercolor: css("--faint"), font: { family: FONT, size: 12.5, color: css("--ink") }, namelength: -1 },
      xaxis: Object.assign({ title: { text: "arithmetic intensity, FLOP/byte", standoff: 8 }, range: data.x_range.map(log) }, axis, { exponentformat: "none", tickformat: "~g" }),
      yaxis: Object.assign({ title: { text: "FLOP/s", standoff: 4 }, range: data.y_range.map(log) }, axis, { tickformat: "~s" }),
      shapes: data.lane ? [{ type: "rect", xref: "x", yref: "paper", x0: data.x_range[0], x1: data.lane * data.lane / data.x_range[0], y0: 0, y1: 1, fillcolor: css("--grid"), opacity: .55, line: { width: 0 }, layer: "below" }] : []
    };
  }

  var busy = false;
  function label() {
    if (busy || !host._fullLayout) { return; }
    busy = true;
    Plotly.relayout(host, { annotations: annotations() }).then(function () { busy = false; }, function () { busy = false; });
  }
  function draw() {
    var config = { displaylogo: false, scrollZoom: false, plotlyServerURL: "", showSendToCloud: false, modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { filename: "roofline", scale: 2 } };
    var traces = data.lines.map(lineTrace).concat(ridgeTrace(), pointTraces());
    return Plotly.react(host, traces, layout(), config).then(label);
  }
  function key() {
    var list = document.getElementById("key"), shapes = {
      circle: '<circle cx="6" cy="6" r="5"/>', square: '<rect x="1.5" y="1.5" width="9" height="9"/>', diamond: '<path d="M6 0.5 11.5 6 6 11.5 0.5 6Z"/>',
      "triangle-up": '<path d="M6 1 11.5 11H.5Z"/>', "triangle-down": '<path d="M6 11 11.5 1H.5Z"/>', "circle-open": '<circle cx="6" cy="6" r="4.5" fill="none" stroke-width="2"/>'
    };
    var present = Object.keys(SYMBOLS).filter(function (b) { return data.points.some(function (p) { return ops[p.i].bound === b; }); });
    present.forEach(function (bound) {
      var item = document.createElement("li");
      item.innerHTML = '<svg width="12" height="12" viewBox="0 0 12 12" style="fill:var(--' + bound + ');stroke:' + (bound === "undetermined" ? "var(--undetermined)" : "none") + '" aria-hidden="true">' + shapes[SYMBOLS[bound]] + "</svg>";
      item.appendChild(document.createTextNode(bound === "undetermined" ? "undetermined" : bound + " bound"));
      list.appendChild(item);
    });
    var dashes = { measured: "", derived: "5 3", declared: "1.5 2.5" }, kinds = Object.keys(dashes).filter(function (k) { return drawn().some(function (l) { return l.kind === k; }); });
    var lines = [["used to judge", 2, "var(--ink)", ""], ["other ceiling", 1.1, "var(--faint)", ""]];
    if (kinds.length > 1) { kinds.forEach(function (k) { lines.push([k, 1.3, "var(--soft)", dashes[k]]); }); }
    lines.forEach(function (k) {
      var item = document.createElement("li");
      item.innerHTML = '<svg width="22" height="12" viewBox="0 0 22 12" aria-hidden="true"><path d="M0 6H22" style="stroke:' + k[2] + '" stroke-width="' + k[1] + '" stroke-dasharray="' + k[3] + '"/></svg>';
      item.appendChild(document.createTextNode(k[0]));
      list.appendChild(item);
    });
  }
  function types() {
    var select = document.getElementById("dtype"), found = Array.from(new Set(data.lines.filter(function (l) { return !l.slanted && l.dtype; }).map(function (l) { return l.dtype; })));
    if (found.length < 2) { return; }
    select.hidden = false;
    var some = worked.length && worked.length < found.length, words = { "": some ? "roofs of the dtypes used" : "roofs of every dtype", "*": "roofs of every dtype" };
    (some ? ["", "*"] : [""]).concat(found).forEach(function (d) {
      var o = document.createElement("option");
      o.value = d; o.textContent = words[d] || "roofs of " + d;
      select.appendChild(o);
    });
    select.addEventListener("change", function () { dtype = select.value; draw(); });
  }
  function more() {
    var button = document.getElementById("all-ceilings"), extra = data.lines.filter(function (l) { return !l.main && !l.used && !l.beside; }).length;
    if (!extra) { return; }
    button.hidden = false;
    button.textContent = "Show all " + data.lines.length + " ceilings";
    button.addEventListener("click", function () {
      all = !all;
      button.setAttribute("aria-pressed", String(all));
      draw();
    });
  }
  return {
    start: function (payload, pick) {
      host = document.getElementById("roofline"); data = payload.chart; ops = payload.operators; onPick = pick;
      worked = data.lines.filter(function (l) { return !l.slanted && l.worked && l.dtype; }).map(function (l) { return l.dtype; })
        .filter(function (d, i, found) { return found.indexOf(d) === i; });
      key(); more(); types();
      var ready = draw();
      host.on("plotly_click", function (event) {
        var p = event.points[0];
        if (p && p.data.meta === "operators") { onPick(p.customdata); }
      });
      host.on("plotly_relayout", function (change) { if (!change || !change.annotations) { label(); } });
      mansardTheme.onChange(function () {
        // A page is narrower than most screens; the chart is drawn again at its width.
        host.style.width = mansardTheme.isPrinting() ? "690px" : "";
        host.style.height = mansardTheme.isPrinting() ? "430px" : "";
        draw();
      });
      var width = host.clientWidth, timer = 0;
      new ResizeObserver(function () {
        if (host.clientWidth === width || mansardTheme.isPrinting()) { return; }
        width = host.clientWidth;
        window.clearTimeout(timer);
        timer = window.setTimeout(draw, 100);
      }).observe(host);
      return ready;
    }
  };
})();
