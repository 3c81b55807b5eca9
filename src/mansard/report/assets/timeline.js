"use strict";
// Bars over time: lanes of one step. One set of bars per kind, hover names each; `exposed` is hatched, `idle` is a pale track.
(function () {
  var m = mansardSections, COLOURS = { compute: "compute", communication: "network", unclassified: "undetermined", copy: "memory", memset: "memory", graph: "host", operation: "compute", idle: "unattributed", exposed: "latency", wait: "host" };
  var PATTERNS = { exposed: "/", idle: "", memset: ".", graph: "\\", wait: "x" };
  function block(box, data) {
    var card = m.make("div", { class: "card chart" }), host = m.make("div", { class: "plot", role: "group", "aria-label": "Timeline, " + data.title });
    host.style.height = (data.lanes.length * 34 + 110) + "px";
    card.appendChild(host);
    m.notes(card, data.notes);
    box.appendChild(card);
    m.later(host, function () { draw(host, data); });
  }
  function unit(seconds) { return seconds < 2e-6 ? [1e9, "ns"] : seconds < 2e-3 ? [1e6, "\u00b5s"] : seconds < 2 ? [1e3, "ms"] : [1, "s"]; }
  function draw(host, data) {
    var small = host.clientWidth < 560, scale = unit(data.window), layout = m.base(host), groups = {}, traces = [], shapes = [];
    data.pieces.forEach(function (p, i) { (groups[p[3]] = groups[p[3]] || []).push(i); });
    Object.keys(groups).forEach(function (kind) {
      var name = data.kinds[kind], rows = groups[kind];
      traces.push({
        type: "bar", orientation: "h", name: name, width: name === "idle" ? .34 : .72, offset: name === "idle" ? -.17 : -.36,
        base: rows.map(function (i) { return data.pieces[i][1] * scale[0]; }), x: rows.map(function (i) { return data.pieces[i][2] * scale[0]; }), y: rows.map(function (i) { return data.pieces[i][0]; }),
        marker: { color: m.css(COLOURS[name]), line: { width: 0 }, pattern: PATTERNS[name] ? { shape: PATTERNS[name], size: 5, fillmode: "overlay", fgcolor: m.css("card"), solidity: .25 } : undefined },
        hoverinfo: "text", hovertext: rows.map(function (i) { var p = data.pieces[i]; return "<b>" + m.wrap(data.names[p[4]], 60) + "</b><br>" + m.safe(name) + ", " + m.safe(data.shown[i]); })
      });
      // What is exposed is shaded over every lane of its device; a few of the longest are enough to see where.
      if (name === "exposed") {
        rows.slice().sort(function (a, b) { return data.pieces[b][2] - data.pieces[a][2]; }).slice(0, 150).forEach(function (i) {
          var p = data.pieces[i], device = data.lanes[p[0]].split(",")[0], lanes = data.lanes.map(function (l, k) { return l.split(",")[0] === device ? k : -1; }).filter(function (k) { return k >= 0; });
          shapes.push({ type: "rect", xref: "x", yref: "y", x0: p[1] * scale[0], x1: (p[1] + p[2]) * scale[0], y0: lanes[0] - .48, y1: lanes[lanes.length - 1] + .48, fillcolor: m.css("latency"), opacity: .16, line: { width: 0 }, layer: "below" });
        });
      }
    });
    layout.barmode = "overlay"; layout.shapes = shapes;
    layout.margin = { l: small ? 60 : 120, r: 14, t: 34, b: 44 };
    layout.xaxis = m.axis("time in the window, " + scale[1], false, small);
    layout.xaxis.range = [0, data.window * scale[0]]; layout.xaxis.exponentformat = "none";
    layout.yaxis = m.axis("", false, true);
    layout.yaxis.range = [data.lanes.length - .5, -.5];
    layout.yaxis.tickvals = data.lanes.map(function (_, i) { return i; });
    layout.yaxis.ticktext = data.lanes.map(function (t) { return m.safe(small ? t.replace("device ", "").replace("stream ", "s") : t); });
    layout.showlegend = true; layout.legend = { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11.5 } };
    Plotly.react(host, traces, layout, m.config);
  }
  m.start({ timeline: block });
})();
