"use strict";
// The operator table. Text from a profile only ever becomes text nodes.
(function () {
  var payload = JSON.parse(document.getElementById("payload").textContent);
  function decode() {
    var f = payload.fields, texts = payload.texts, from = f.texts.length, then = from + f.figures.length;
    return payload.rows.map(function (row, i) {
      var o = { i: i, v: {}, t: {} };
      f.texts.forEach(function (key, k) { o[key] = texts[row[k]]; });
      f.figures.forEach(function (key, k) { o.v[key] = row[from + k]; });
      f.shown.forEach(function (key, k) { o.t[key] = texts[row[then + k]]; });
      o.v.step = o.v.time;
      o.hay = (o.name + " " + o.shapes + " " + o.part + " " + o.category + " " + o.bound).toLowerCase();
      var short = o.name.replace(/^aten::/, "");
      o.label = short.length > 24 ? short.slice(0, 15) + "\u2026" + short.slice(-8) : short;
      return o;
    });
  }
  payload.chart.points = payload.chart.points.map(function (point) {
    var p = {};
    payload.fields.point.forEach(function (key, k) { p[key] = point[k]; });
    return p;
  });
  var ops = payload.operators = decode(), names = Object.create(null);
  ops.forEach(function (o) { names[o.name] = (names[o.name] || 0) + 1; });
  var COLUMNS = [
    { key: "name", title: "operator", text: true }, { key: "calls", title: "calls" }, { key: "time", title: "time" }, { key: "step", title: "of step" },
    { key: "flop", title: "FLOP" }, { key: "bytes", title: "bytes" }, { key: "fpb", title: "FLOP/byte" }, { key: "bound", title: "bound", text: true },
    { key: "share", title: "of ceiling" }, { key: "headroom", title: "headroom" }, { key: "part", title: "part", text: true }, { key: "limit", title: "ceiling", text: true }
  ];
  var state = { sort: "time", down: true, query: "", part: "", hidden: {} };
  var table = document.getElementById("table"), body = table.tBodies[0];

  function make(tag, attributes, text) {
    var node = document.createElement(tag);
    Object.keys(attributes || {}).forEach(function (name) { node.setAttribute(name, attributes[name]); });
    if (text !== undefined) { node.textContent = text; }
    return node;
  }
  function value(o, key) { return key in o.v ? o.v[key] : o[key]; }

  // What is not known sorts last in both directions.
  function compare(a, b) {
    var x = value(a, state.sort), y = value(b, state.sort);
    if (x === null || y === null) { return x === y ? a.i - b.i : x === null ? 1 : -1; }
    var order = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
    return (state.down ? -order : order) || a.i - b.i;
  }
  function visible(o) {
    return !state.hidden[o.bound] && (!state.part || o.part === state.part) &&
      (!state.query || o.hay.indexOf(state.query) >= 0);
  }

  function head() {
    var row = table.tHead.rows[0];
    COLUMNS.forEach(function (c) {
      var th = make("th", { scope: "col", class: c.key === "name" ? "text name" : c.text ? "text" : "", "data-key": c.key, "aria-sort": "none" });
      var button = make("button", { type: "button", class: "sort" }, c.title);
      button.addEventListener("click", function () {
        if (state.sort === c.key) { state.down = !state.down; } else { state.sort = c.key; state.down = !c.text; }
        show();
      });
      th.appendChild(button);
      row.appendChild(th);
    });
  }
  function cell(o, c) {
    if (c.key === "bound") {
      var td = make("td", { class: "text" });
      td.appendChild(make("span", { class: "swatch bg-" + o.bound, "aria-hidden": "true" }));
      td.appendChild(document.createTextNode(o.bound));
      return td;
    }
    return make("td", { class: c.text ? "text" : "" }, c.key in o.t ? o.t[c.key] : o[c.key]);
  }
  function line(o) {
    var tr = make("tr", { class: "row", "data-index": o.i }), th = make("th", { scope: "row", class: "text name" });
    var button = make("button", { type: "button", class: "open code", "aria-expanded": "false", title: o.name + (o.shapes ? "\n" + o.shapes : "") }, o.name);
    if (names[o.name] > 1 && o.shapes) { button.appendChild(make("span", { class: "shape" }, " " + o.shapes)); }
    button.addEventListener("click", function () { toggle(o, tr, button); });
    th.appendChild(button);
    tr.appendChild(th);
    COLUMNS.slice(1).forEach(function (c) { tr.appendChild(cell(o, c)); });
    return tr;
  }
  function toggle(o, tr, button) {
    var open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) { tr.nextSibling.remove(); return; }
    var more = make("tr", { class: "more" }), td = make("td", { colspan: COLUMNS.length }), list = make("dl", { class: "facts" });
    [["name", o.name], ["shape", o.shapes], ["category", o.category], ["from", o.source], ["work", o.work + (o.full ? " (" + o.full + " if the causal part were counted in full)" : "")], ["bytes", o.t.bytes],
      ["counted as", o.formula], ["judged against", o.ceiling], ["memory level", o.level], ["verdict", o.reason], ["evidence", o.grade], ["not known", o.missing], ["suspects", o.suspects]].forEach(function (f) {
      if (f[1]) { list.appendChild(make("dt", {}, f[0])); list.appendChild(make("dd", {}, f[1])); }
    });
    td.appendChild(list);
    more.appendChild(td);
    tr.after(more);
  }
  function foot() {
    payload.sums.forEach(function (sum) {
      var tr = make("tr", { class: "sum" });
      tr.appendChild(make("th", { scope: "row", class: "text name", style: "padding:6px 10px" }, sum.name));
      COLUMNS.slice(1).forEach(function (c) { tr.appendChild(make("td", {}, sum.t[c.key] || "")); });
      table.tFoot.appendChild(tr);
    });
  }
  function show() {
    var rows = ops.filter(visible).sort(compare), piece = document.createDocumentFragment(), time = 0;
    rows.forEach(function (o) { time += o.v.time; piece.appendChild(line(o)); });
    if (!rows.length) { var tr = make("tr", {}), td = make("td", { class: "text", colspan: COLUMNS.length }, ops.length ? "No operator matches." : "No operators were recorded."); tr.appendChild(td); piece.appendChild(tr); }
    body.replaceChildren(piece);
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (th) {
      th.setAttribute("aria-sort", th.getAttribute("data-key") !== state.sort ? "none" : state.down ? "descending" : "ascending");
    });
    var part = payload.total_time > 0 ? (100 * time / payload.total_time).toFixed(1) + " % of the time in operators" : "";
    document.getElementById("count").textContent = "Showing " + rows.length + " of " + payload.total_count + " operators" + (part ? ", " + part : "") + (payload.cap ? ". " + payload.cap : "");
  }
  function controls() {
    var search = document.getElementById("search"), part = document.getElementById("part"), bounds = document.getElementById("bounds");
    search.addEventListener("input", function () { state.query = search.value.trim().toLowerCase(); show(); });
    part.appendChild(make("option", { value: "" }, "all parts"));
    Array.from(new Set(ops.map(function (o) { return o.part; }))).forEach(function (p) { part.appendChild(make("option", { value: p }, p)); });
    part.addEventListener("change", function () { state.part = part.value; show(); });
    Array.from(new Set(ops.map(function (o) { return o.bound; }))).forEach(function (bound) {
      var chip = make("button", { type: "button", class: "chip", "aria-pressed": "true" });
      chip.appendChild(make("span", { class: "swatch bg-" + bound, "aria-hidden": "true" }));
      chip.appendChild(document.createTextNode(bound));
      chip.addEventListener("click", function () {
        state.hidden[bound] = !state.hidden[bound];
        chip.setAttribute("aria-pressed", String(!state.hidden[bound]));
        show();
      });
      bounds.appendChild(chip);
    });
  }
  function pick(index) {
    if (!visible(ops[index])) {
      state.query = ""; state.part = ""; state.hidden = {};
      document.getElementById("search").value = ""; document.getElementById("part").value = "";
      document.querySelectorAll(".chip").forEach(function (c) { c.setAttribute("aria-pressed", "true"); });
      show();
    }
    var row = body.querySelector('tr[data-index="' + index + '"]'), button = row.querySelector(".open");
    if (button.getAttribute("aria-expanded") !== "true") { button.click(); }
    row.scrollIntoView({ block: "center" });
    button.focus({ preventScroll: true });
    row.classList.add("flash");
    window.setTimeout(function () { row.classList.remove("flash"); }, 1600);
  }
  mansardTheme.bind(document.getElementById("theme"));
  head(); foot(); controls(); show();
  mansardChart.start(payload, pick).then(function () { document.documentElement.setAttribute("data-ready", "true"); });
})();
