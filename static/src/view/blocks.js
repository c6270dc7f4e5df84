/**
 * What is added to a block of an answer once it stands: colours for code and a button to copy it,
 * typeset formulas. Their libraries are fetched when the first such block comes.
 */

import { highlighted } from "./highlight.js";

/** @param {HTMLElement} block */
export function finishBlock(block) {
  for (const code of block.querySelectorAll("pre")) void finishCode(code);
  for (const formula of block.querySelectorAll(".math")) {
    void finishFormula(/** @type {HTMLElement} */ (formula));
  }
}

/** @param {HTMLElement} block */
async function finishCode(block) {
  const text = block.textContent ?? "";
  const code = block.querySelector("code");
  const language = block.dataset.language ?? "";
  block.tabIndex = 0; // it scrolls sideways, and so must be reachable by keyboard
  const top = document.createElement("div");
  top.className = "code-top";
  const name = document.createElement("span");
  name.textContent = language;
  top.append(name);
  if (navigator.clipboard) top.append(copyButton(text));
  const frame = document.createElement("div");
  frame.className = "code";
  block.replaceWith(frame);
  frame.append(top, block);
  if (!code || language === "" || text.length > 50_000) return;
  const html = await highlighted(text, language);
  // What is selected in it would be no more.
  const selection = getSelection();
  const isSelected = selection && !selection.isCollapsed && code.contains(selection.anchorNode);
  if (html !== null && !isSelected) code.replaceChildren(html);
}

/** @param {string} text */
function copyButton(text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "plain";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy this code");
  button.addEventListener("click", () => {
    navigator.clipboard.writeText(text).then(
      () => (button.textContent = "Copied"),
      () => (button.textContent = "Not allowed"),
    );
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/** @param {HTMLElement} formula */
async function finishFormula(formula) {
  const { typeset } = await import("./formula.js");
  typeset(formula, formula.textContent ?? "", formula.dataset.display === "true");
}
