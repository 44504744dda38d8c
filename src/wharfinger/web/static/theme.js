// Runs before the page is drawn, so that a remembered theme does not flash.
(() => {
  let remembered = null;
  try {
    remembered = localStorage.getItem("theme");
  } catch {
    // Storage is switched off: the system's theme it is.
  }
  if (remembered === "light" || remembered === "dark") document.documentElement.dataset.theme = remembered;
})();
