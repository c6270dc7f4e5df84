/** The pictures of `index.html` on buttons that scripts make. */

const SVG = "http://www.w3.org/2000/svg";

/** @param {string} name of a symbol there */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#${name}`);
  svg.append(use);
  return svg;
}

const DONE_MS = 1500;

/**
 * Shows on a button for a moment that it has done its work.
 * @param {HTMLElement} button
 */
export function showDone(button) {
  const use = button.querySelector("use");
  const name = use?.getAttribute("href");
  if (!use || !name || name === "#i-done") return;
  use.setAttribute("href", "#i-done");
  setTimeout(() => use.setAttribute("href", name), DONE_MS);
}

/**
 * A button that is a picture.
 * @param {string} name of the symbol
 * @param {string} label what it does
 */
export function iconButton(name, label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "plain tool";
  button.setAttribute("aria-label", label);
  button.title = label;
  button.append(icon(name));
  return button;
}
