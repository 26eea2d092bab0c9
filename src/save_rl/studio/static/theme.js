// Runs before the first paint, so that the page never flashes in the other theme.
(() => {
  let kept = null;
  try { kept = localStorage.getItem("theme"); } catch { /* storage is off */ }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
