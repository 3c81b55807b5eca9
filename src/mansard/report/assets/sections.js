"use strict";
// Sections beside the first run: charts, tables and prose from JSON. Text only ever becomes text nodes, or goes through `safe`.
var mansardSections = (function () {
  var PALETTE = ["compute", "memory", "network", "host", "latency", "undetermined"], SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"];
  var VERDICTS = { normal: "host", low: "memory", noisy: "network", implausible: "latency", "not judged": "undetermined" };
  var FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif';
  var CONFIG = { displaylogo: false, scrollZoom: false, plotlyServerURL: "", showSendToCloud: false, modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { scale: 2 } };
  var waiting = [], drawn = [];

  function safe(text) { return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); }
  function css(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); }
  function make(tag, attributes, text) {
    var node = document.createElement(tag);
    Object.keys(attributes || {}).forEach(function (name) { node.setAttribute(name, attributes[name]); });
    if (text !== undefined) { node.textContent = text; }
    return node;
  }
  function wrap(text, width) {
    var lines = [], current = "";
    String(text).split(" ").forEach(function (word) {
      while (word.length > width) { if (current) { lines.push(current); current = ""; } lines.push(word.slice(0, width)); word = word.slice(width); }
      if (current && current.length + word.length + 1 > width) { lines.push(current); current = word; } else { current = current ? current + " " + word : word; }
    });
    if (current) { lines.push(current); }
    return lines.map(safe).join("<br>");
  }
  function colourOf(name, index) {
    var known = VERDICTS[name] || (PALETTE.indexOf(name) >= 0 || name === "unattributed" ? name : "");
    return css(known || PALETTE[index % (PALETTE.length - 1)]);
  }
  function notes(box, lines) { lines.forEach(function (line) { box.appendChild(make("p", { class: "caption" }, line)); }); }

  function base(host) {
    var small = host.clientWidth < 560;
    return {
      width: host.clientWidth, height: host.clientHeight, autosize: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: FONT, color: css("ink"), size: 12.5 }, hovermode: "closest", dragmode: small ? false : "zoom", hoverdistance: 12,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("faint"), activecolor: css("accent") },
      hoverlabel: { align: "left", bgcolor: css("card"), bordercolor: css("faint"), font: { family: FONT, size: 12.5, color: css("ink") }, namelength: -1 }
    };
  }
  function axis(title, isLog, small) {
    var out = { title: { text: title, standoff: 8, font: { size: small ? 12 : 14 } }, gridcolor: css("grid"), linecolor: css("line"), zeroline: false, showline: true, ticks: "outside", tickcolor: css("line"), tickfont: { size: 12, color: css("soft") }, exponentformat: "SI", fixedrange: small, automargin: true };
    if (isLog) { out.type = "log"; out.dtick = 1; out.minor = { ticks: "", showgrid: false }; }
    return out;
  }
  function extent(chart, key) {
    var low = Infinity, high = -Infinity;
    chart.series.forEach(function (s) { s[key].forEach(function (v) { if (v > 0) { low = Math.min(low, v); high = Math.max(high, v); } }); });
    return [low, high];
  }
  // A logarithmic axis spans whole decades only where there are several: short sweeps keep their shape.
  function logRange(low, high, room) {
    if (!(low < Infinity)) { return undefined; }
    var a = Math.log10(low), b = Math.log10(high), gap = Math.max(room, (b - a) * .06);
    return [a - gap, b + gap];
  }
  // Ticks carry the unit with its prefix, so that nobody reads "10m" as minutes; the title then needs none.
  function unit(axis) {
    var found = /^(?:(.*), )?(s|B\/s|FLOP\/s|bytes?)$/.exec(axis.title.text);
    if (!found) { return ""; }
    axis.title.text = found[1] === undefined ? "rate" : found[1];
    axis.tickformat = "~s";
    return axis.ticksuffix = found[2].indexOf("byte") === 0 ? "B" : found[2];
  }
  function prefixed(value) {
    var steps = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "\u00b5"], [1e-9, "n"]], i = 0;
    while (i < steps.length - 1 && value < steps[i][0] * .9999999) { i++; }
    return Number((value / steps[i][0]).toPrecision(4)) + steps[i][1];
  }
  // Short logarithmic axes get 1, 2, 5 in full; counts that are powers of two get those.
  function ticks(axis, values) {
    if (!axis.range) { return; }
    var low = axis.range[0], high = axis.range[1], list = [], e, k, suffix = axis.ticksuffix || "";
    var counts = !suffix && values ? Array.from(new Set(values)).sort(function (a, b) { return a - b; }) : [];
    var twos = !suffix && values && values.length > 1 && values.every(function (v) { return v >= 1 && Math.log2(v) % 1 === 0; });
    if (counts.length && counts.length < 9 && high - low < 2 && counts.every(function (v) { return v >= 1 && v % 1 === 0; })) { list = counts; } else if (twos) { for (e = 0; e < 60; e++) { list.push(Math.pow(2, e)); } } else {
      if (high - low >= 2) { return; }
      for (e = Math.floor(low); e <= high; e++) { for (k = 0; k < 3; k++) { list.push([1, 2, 5][k] * Math.pow(10, e)); } }
    }
    list = list.filter(function (v) { var at = Math.log10(v); return at >= low && at <= high; });
    while (list.length > 12) { list = list.filter(function (v, i) { return i % 2 === 0; }); }
    if (list.length < 2 && !(list.length && list === counts)) { axis.dtick = "D1"; return; }
    axis.tickmode = "array"; axis.tickvals = list;
    axis.ticktext = list.map(function (v) { return twos && v < 1e5 ? String(v) : prefixed(v) + suffix; });
    axis.ticksuffix = "";
  }
  function traces(chart) {
    var serial = 0;
    return chart.series.map(function (s, i) {
      var colour = colourOf(s.colour || "", s.quiet ? Math.max(0, serial - 1) : serial), text = s.text.map(function (t) { return wrap(t, 64); });
      var symbol = SYMBOLS[serial % SYMBOLS.length];
      if (!s.quiet) { serial++; }
      if (s.mode === "bars") {
        return { type: "bar", name: safe(s.name), orientation: chart.sideways ? "h" : "v", x: chart.sideways ? s.y : s.x.map(safe), y: chart.sideways ? s.x.map(safe) : s.y, marker: { color: colour }, hoverinfo: "text", hovertext: text, width: chart.percent ? .72 : undefined };
      }
      var trace = {
        type: "scatter", mode: s.mode, name: safe(s.name), x: chart.sideways ? s.y : s.x, y: chart.sideways ? s.x.map(safe) : s.y, hoverinfo: text.length ? "text" : "skip", hovertext: text, showlegend: !s.quiet,
        line: { color: colour, width: s.quiet ? 1.2 : 1.8, dash: s.dash }, marker: { color: colour, symbol: symbol, size: 7, opacity: .85 }
      };
      if (s.plus) { trace[chart.sideways ? "error_x" : "error_y"] = { type: "data", symmetric: false, array: s.plus, arrayminus: s.minus, color: colour, thickness: 1, width: 2 }; }
      return trace;
    });
  }
  // Names of lines near the right edge run to the left, so that none is cut.
  function side(value, chart, layout) {
    var range = layout.xaxis.range, xs = extent(chart, "x"), low = range ? range[0] : xs[0], high = range ? range[1] : xs[1];
    if (!range) { chart.uprights.forEach(function (u) { high = Math.max(high, u[0]); }); }
    return (value - low) / (high - low) > .82 ? "right" : "left";
  }
  function references(chart, layout, yr) {
    layout.shapes = []; layout.annotations = [];
    function at(v, isLog) { return isLog ? Math.log10(v) : v; }
    chart.bands.forEach(function (b) { layout.shapes.push({ type: "rect", xref: "x", yref: "paper", x0: b[0], x1: b[1], y0: 0, y1: 1, fillcolor: css(b[2]), opacity: .16, line: { width: 0 }, layer: "below" }); });
    chart.uprights.forEach(function (u, i) {
      layout.shapes.push({ type: "line", xref: "x", yref: "paper", x0: u[0], x1: u[0], y0: 0, y1: 1, line: { color: css("faint"), width: 1, dash: "dot" } });
      layout.annotations.push({ xref: "x", yref: "paper", x: at(u[0], chart.x_log), y: chart.percent ? 1 : 1 - (i % 3) * .06, yanchor: chart.percent ? "bottom" : "top", xanchor: chart.sideways ? "left" : side(at(u[0], chart.x_log), chart, layout), showarrow: false, text: safe(u[1]), font: { size: 11, color: css("soft") } });
    });
    var before = Infinity;
    chart.levels.slice().sort(function (a, b) { return a[0] - b[0]; }).forEach(function (l) {
      layout.shapes.push({ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: l[0], y1: l[0], line: { color: css("soft"), width: 1, dash: "dash" } });
      var place = yr ? (at(l[0], chart.y_log) - yr[0]) / (yr[1] - yr[0]) : 0;
      if (yr && Math.abs(place - before) < .045) { return; }
      before = place;
      layout.annotations.push({ xref: "paper", yref: "y", x: 1, y: at(l[0], chart.y_log), xanchor: "right", yanchor: "bottom", showarrow: false, text: safe(l[1]), font: { size: 11, color: css("soft") } });
    });
  }
  function drawChart(host, chart) {
    var small = host.clientWidth < 560, layout = base(host), yr;
    layout.xaxis = axis(chart.x, chart.x_log, small);
    layout.yaxis = axis(chart.y, chart.y_log, small);
    unit(layout.xaxis); unit(layout.yaxis);
    layout.margin = { l: small ? 48 : 64, r: 14, t: chart.percent ? 40 : 30, b: 48 };
    layout.showlegend = chart.series.filter(function (s) { return !s.quiet; }).length > 1;
    layout.legend = { orientation: "h", y: -0.18, x: 0, font: { size: 11.5 }, itemclick: "toggle" };
    if (chart.sideways) {
      layout.barmode = chart.stacked === false ? "group" : "stack";
      layout.yaxis.autorange = "reversed"; layout.yaxis.type = "category"; layout.yaxis.categoryorder = "array";
      layout.yaxis.tickfont.size = 11;
      layout.yaxis.categoryarray = order(chart).map(safe);
      layout.yaxis.tickvals = order(chart).map(safe);
      layout.yaxis.ticktext = order(chart).map(function (t) { var most = small ? 18 : 48; return safe(t.length > most ? t.slice(0, most - Math.floor(most / 2) - 1) + "\u2026" + t.slice(-Math.floor(most / 2)) : t); });
      layout.margin.t = small ? 84 : 66; layout.margin.b = 44;
      layout.legend.y = 1 + 20 / Math.max(40, host.clientHeight - layout.margin.t - 44); layout.legend.yanchor = "bottom"; layout.legend.traceorder = "normal";
      if (!chart.percent && chart.series[0].mode !== "bars") { layout.xaxis.tickformat = "~g"; } else if (!chart.percent) { layout.xaxis.tickformat = "~s"; layout.xaxis.nticks = small ? 4 : 8; } else { layout.xaxis.tickformat = ".0%"; layout.xaxis.range = [0, Math.min(1.6, Math.max(1.08, extent(chart, "y")[1] * 1.04))]; }
    } else {
      if (chart.x_log) { var xe = extent(chart, "x"); chart.uprights.forEach(function (u) { if (u[0] > xe[0] && u[0] < xe[1] * 4) { xe[1] = Math.max(xe[1], u[0]); } }); layout.xaxis.range = logRange(xe[0], xe[1], .05); ticks(layout.xaxis, chart.series.filter(function (q) { return q.mode !== "lines"; }).reduce(function (all, q) { return all.concat(q.x); }, [])); }
      if (chart.y_log) { var ye = extent(chart, "y"); chart.levels.forEach(function (l) { if (l[0] < ye[1] * 30) { ye[1] = Math.max(ye[1], l[0]); } }); yr = layout.yaxis.range = logRange(ye[0], ye[1], .15); ticks(layout.yaxis); }
    }
    if (chart.percent && !chart.sideways) { yr = layout.yaxis.range = [0, Math.max(1.08, extent(chart, "y")[1] * 1.08)]; layout.yaxis.tickformat = ".0%"; }
    if (chart.x_names.length) {
      var named = small ? chart.x_names.filter(function (n, i) { return i % 3 === 0; }) : chart.x_names;
      layout.xaxis.tickmode = "array"; layout.xaxis.tickvals = named.map(function (n) { return n[0]; });
      layout.xaxis.ticktext = named.map(function (n) { return n[0] + "<br>" + safe(n[1]); });
    }
    references(chart, layout, yr);
    Plotly.react(host, traces(chart), layout, CONFIG);
  }
  function order(chart) {
    var value = Object.create(null), names = [];
    chart.series.forEach(function (s) { s.x.forEach(function (n, i) { if (!(n in value)) { value[n] = 0; names.push(n); } value[n] += s.y[i]; }); });
    return chart.percent ? names.sort(function (a, b) { return value[b] - value[a]; }) : names;
  }
  function chartBlock(box, chart) {
    var card = make("div", { class: "card chart" }), host = make("div", { class: "plot", role: "group", "aria-label": chart.label });
    var rows = chart.sideways ? order(chart).length : 0;
    card.appendChild(make("h3", {}, chart.label));
    if (rows) { host.style.height = Math.max(150, rows * (chart.percent ? 21 : 30) + 124) + "px"; }
    if (!chart.series.length) { card.appendChild(make("p", { class: "caption" }, "Nothing to draw.")); } else { card.appendChild(host); later(host, function () { drawChart(host, chart); }); }
    notes(card, chart.notes);
    box.appendChild(card);
  }

  function tableBlock(box, data) {
    var state = { sort: -1, down: true, query: "", only: "" }, tools = make("div", { class: "tools" }), count = make("p", { class: "count", "aria-live": "polite" });
    var frame = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": data.label }), table = make("table", { class: "data generic" }), head = make("tr", {}), body = make("tbody", {});
    var rows = data.rows.map(function (r, i) { return { i: i, r: r, v: data.values[i], hay: r.join(" ").toLowerCase() }; }), isText = function (k) { return data.texts.indexOf(k) >= 0; };
    function key(row, k) { return isText(k) ? row.r[k] : row.v[k]; }
    function compare(a, b) {
      if (state.sort < 0) { return a.i - b.i; }
      var x = key(a, state.sort), y = key(b, state.sort);
      if (x === null || y === null) { return x === y ? a.i - b.i : x === null ? 1 : -1; }
      var found = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
      return (state.down ? -found : found) || a.i - b.i;
    }
    function show() {
      var kept = rows.filter(function (r) { return (!state.query || r.hay.indexOf(state.query) >= 0) && (!state.only || r.r[data.filter] === state.only); }).sort(compare), piece = document.createDocumentFragment();
      kept.forEach(function (row) {
        var tr = make("tr", { class: "row" });
        row.r.forEach(function (text, k) {
          var cell = make(k ? "td" : "th", { class: (isText(k) ? "text" : "") + (k ? "" : " first") + (isText(k) && (text.length > 44 || !k && text.length > 30 && /^\S{1,30}( \S{1,30})+$/.test(text)) ? " long" : "") });
          if (!k) { cell.setAttribute("scope", "row"); }
          if (k === data.swatch) { var known = VERDICTS[text] || (PALETTE.indexOf(text) >= 0 ? text : ""); if (known) { cell.appendChild(make("span", { class: "swatch bg-" + known, "aria-hidden": "true" })); } }
          var inner = make("span", { class: "cell" }, text);
          if (text.length > 44) { inner.setAttribute("title", text); }
          cell.appendChild(inner);
          tr.appendChild(cell);
        });
        piece.appendChild(tr);
      });
      if (!kept.length) { var none = make("tr", {}); none.appendChild(make("td", { class: "text", colspan: data.columns.length }, rows.length ? "No row matches." : "No rows.")); piece.appendChild(none); }
      body.replaceChildren(piece);
      Array.prototype.forEach.call(head.cells, function (th, k) { th.setAttribute("aria-sort", k !== state.sort ? "none" : state.down ? "descending" : "ascending"); });
      count.textContent = kept.length === rows.length ? rows.length + " rows" : kept.length + " of " + rows.length + " rows";
    }
    data.columns.forEach(function (title, k) {
      var th = make("th", { scope: "col", class: (isText(k) ? "text" : "") + (k ? "" : " first") }), button = make("button", { type: "button", class: "sort" }, title);
      button.addEventListener("click", function () {
        if (state.sort === k) { state.down = !state.down; } else { state.sort = k; state.down = !isText(k); }
        show();
      });
      th.appendChild(button); head.appendChild(th);
    });
    if (rows.length > 8) {
      var search = make("input", { type: "search", placeholder: "Search", "aria-label": "Search: " + data.label });
      search.addEventListener("input", function () { state.query = search.value.trim().toLowerCase(); show(); });
      tools.appendChild(search);
    }
    if (data.filter !== null && rows.length > 4) {
      var select = make("select", { "aria-label": data.label + " by " + data.columns[data.filter] });
      select.appendChild(make("option", { value: "" }, "every " + data.columns[data.filter]));
      Array.from(new Set(rows.map(function (r) { return r.r[data.filter]; }))).forEach(function (v) { select.appendChild(make("option", { value: v }, v)); });
      select.addEventListener("change", function () { state.only = select.value; show(); });
      tools.appendChild(select);
    }
    if (!data.alone) { box.appendChild(make("h3", { class: "table-title" }, data.label)); }
    if (tools.childNodes.length) { tools.appendChild(count); box.appendChild(tools); }
    var thead = make("thead", {});
    thead.appendChild(head); table.appendChild(thead); table.appendChild(body); frame.appendChild(table); box.appendChild(frame);
    notes(box, data.notes);
    show();
  }
  function factsBlock(box, data) {
    var card = make("div", { class: "card" }), list = make("dl", { class: "facts" });
    data.rows.forEach(function (r) { list.appendChild(make("dt", {}, r[0])); list.appendChild(make("dd", {}, r[1])); });
    card.appendChild(list); box.appendChild(card);
  }
  function proseBlock(box, data) { data.lines.forEach(function (line) { box.appendChild(make("p", { class: "why" }, line)); }); }

  // Charts are drawn when they come near the view, and all of them before a page is printed.
  function later(host, draw) { waiting.push({ host: host, draw: draw }); }
  function drawNow(item) { if (waiting.indexOf(item) < 0) { return; } waiting.splice(waiting.indexOf(item), 1); drawn.push(item); item.width = item.host.clientWidth; item.draw(); }
  function all() { waiting.slice().forEach(function (item) { if (item.host.clientWidth) { drawNow(item); } }); }
  // On paper a chart is no taller than a page: one that is would be moved to the next, and cut there.
  function again(item) {
    var paper = mansardTheme.isPrinting();
    if (item.tall === undefined) { item.tall = item.host.style.height; }
    item.host.style.width = paper ? "690px" : "";
    item.host.style.height = paper && parseFloat(item.tall) > 880 ? "880px" : item.tall;
    item.width = item.host.clientWidth;
    if (item.width) { item.draw(); }
  }
  function watch() {
    var seen = new IntersectionObserver(function (entries) {
      entries.forEach(function (e) { if (e.isIntersecting) { seen.unobserve(e.target); waiting.slice().forEach(function (item) { if (item.host === e.target) { drawNow(item); resized.observe(item.host); } }); } });
    }, { rootMargin: "500px" });
    var timer = 0, resized = new ResizeObserver(function () {
      window.clearTimeout(timer);
      timer = window.setTimeout(function () { if (!mansardTheme.isPrinting()) { drawn.forEach(function (i) { if (i.host.clientWidth && i.host.clientWidth !== i.width) { again(i); } }); } }, 100);
    });
    waiting.forEach(function (item) { seen.observe(item.host); });
    mansardTheme.onChange(function () { if (mansardTheme.isPrinting()) { all(); } drawn.forEach(again); });
  }
  function start(kinds) {
    var sections = JSON.parse(document.getElementById("sections").textContent), byKey = {}, makers = Object.assign({ chart: chartBlock, table: tableBlock, facts: factsBlock, prose: proseBlock }, kinds);
    sections.forEach(function (s) { byKey[s.key] = s.blocks; });
    function fill(box) { var data = byKey[box.getAttribute("data-key")][Number(box.getAttribute("data-index"))]; if (!box.childNodes.length) { makers[data.kind](box, data); } }
    document.querySelectorAll("section > .block").forEach(fill);
    document.querySelectorAll("details.section").forEach(function (d) {
      d.addEventListener("toggle", function () { if (d.open) { d.querySelectorAll(".block").forEach(fill); waiting.slice().forEach(function (i) { if (d.contains(i.host)) { drawNow(i); } }); } });
    });
    if (!document.getElementById("payload")) { mansardTheme.bind(document.getElementById("theme")); }
    watch();
    document.documentElement.setAttribute("data-sections", "ready");
  }
  return { start: start, later: later, make: make, safe: safe, wrap: wrap, css: css, base: base, axis: axis, notes: notes, config: CONFIG };
})();
