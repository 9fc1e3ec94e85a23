// Sets light or dark before the first paint: loaded as a plain blocking script in <head>, so it has no imports.
// <html data-theme="auto|light|dark"> is the user's wish; data-bs-theme is what the style sheet goes by.
{
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = (): void => {
    const wish = root.dataset["theme"] ?? "auto";
    const theme = wish === "light" || wish === "dark" ? wish : dark.matches ? "dark" : "light";
    if (root.dataset["bsTheme"] === theme) return;
    root.dataset["bsTheme"] = theme;
    root.dispatchEvent(new CustomEvent("sl-theme", { bubbles: true }));
  };
  apply();
  dark.addEventListener("change", apply);
  // The switch on the page changes the wish; whoever changes it need not know this script.
  new MutationObserver(apply).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
}
