/** Colours for code, with the languages that are asked about most. */

import DOMPurify from "dompurify";
import highlight from "highlight.js/lib/common";

/**
 * @param {string} text
 * @param {string} language as the model calls it
 * @returns {DocumentFragment|null} null where the language is not known
 */
export function highlighted(text, language) {
  if (!highlight.getLanguage(language)) return null;
  const { value } = highlight.highlight(text, { language, ignoreIllegals: true });
  return DOMPurify.sanitize(value, {
    ALLOWED_TAGS: ["span"],
    ALLOWED_ATTR: ["class"],
    RETURN_DOM_FRAGMENT: true,
  });
}
