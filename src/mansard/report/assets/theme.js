"use strict";
// Runs in the head, so that a dark page never flashes white. The choice is kept where the browser allows it.
var mansardTheme = (function () {
  var order = ["auto", "dark", "light"], media = window.matchMedia("(prefers-color-scheme: dark)");
  var choice = "auto", printing = false, listeners = [];
  try { choice = localStorage.getItem("mansard-theme") || "auto"; } catch (e) { choice = "auto"; }
  if (order.indexOf(choice) < 0) { choice = "auto"; }
  function apply() {
    var dark = !printing && (choice === "dark" || (choice === "auto" && media.matches));
    document.documentElement.setAttribute("data-theme", dark ? "dark" : "light");
    listeners.forEach(function (listener) { listener(); });
  }
  media.addEventListener("change", apply);
  window.addEventListener("beforeprint", function () { printing = true; apply(); });
  window.addEventListener("afterprint", function () { printing = false; apply(); });
  apply();
  return {
    onChange: function (listener) { listeners.push(listener); },
    isPrinting: function () { return printing; },
    bind: function (button) {
      function label() { button.textContent = "Theme: " + choice; }
      button.addEventListener("click", function () {
        choice = order[(order.indexOf(choice) + 1) % order.length];
        try { localStorage.setItem("mansard-theme", choice); } catch (e) { /* a file without storage keeps no choice */ }
        label(); apply();
      });
      label();
    }
  };
})();
