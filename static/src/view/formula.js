/** Formulas as MathML, which browsers draw themselves: no fonts, and no styles in the markup. */

import katex from "katex";

/** KaTeX expands macros; a text that defines them in circles must end. */
const MOST_EXPANSIONS = 200;

/** In KaTeX's markup; in a text there is no such quotation mark. */
const STYLE = / style="[^"]*"/g;

/**
 * @param {HTMLElement} element shows the TeX as it is where it is none
 * @param {string} tex
 * @param {boolean} displayMode
 */
export function typeset(element, tex, displayMode) {
  const options = { displayMode, maxExpand: MOST_EXPANSIONS, maxSize: 20, trust: false };
  try {
    const markup = katex.renderToString(tex, { ...options, output: "mathml", throwOnError: true });
    // A few commands come as a style, which the policy of the page does not let in.
    element.innerHTML = markup.replaceAll(STYLE, "");
  } catch {
    element.textContent = tex;
  }
}
