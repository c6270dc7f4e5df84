/** Formulas as MathML, which browsers draw themselves: no fonts, and no styles in the markup. */

import katex from "katex";

/** KaTeX expands macros; a text that defines them in circles must end. */
const MOST_EXPANSIONS = 200;

/**
 * @param {HTMLElement} element shows the TeX as it is where it is none
 * @param {string} tex
 * @param {boolean} displayMode
 */
export function typeset(element, tex, displayMode) {
  const options = { displayMode, maxExpand: MOST_EXPANSIONS, maxSize: 20, trust: false };
  try {
    katex.render(tex, element, { ...options, output: "mathml", throwOnError: true });
  } catch {
    element.textContent = tex;
  }
}
