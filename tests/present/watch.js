// Stands before the page's own scripts: collects what goes wrong in them.
window.troubles = [];
// Without a screen few frames are drawn; scripts must get theirs all the same.
window.requestAnimationFrame = (call) => setTimeout(() => call(performance.now()), 16);
window.cancelAnimationFrame = clearTimeout;
addEventListener("error", (event) => troubles.push(`error: ${event.message}`));
addEventListener("unhandledrejection", (event) => troubles.push(`rejection: ${event.reason}`));
addEventListener("securitypolicyviolation", (event) => troubles.push(`forbidden: ${event.blockedURI} ${event.violatedDirective}`));
for (const name of ["error", "warn"]) {
  const original = console[name];
  console[name] = (...words) => {
    troubles.push(`console.${name}: ${words.join(" ")}`);
    original.apply(console, words);
  };
}
