/** Browsers lay out one piece of text of a million characters for many seconds. */
const MOST_SHOWN = 100_000;

/**
 * @param {string} text
 * @returns {string} it, or its beginning, and how much more there is
 */
export function shortened(text) {
  const more = text.length - MOST_SHOWN;
  if (more <= 0) return text;
  return `${text.slice(0, MOST_SHOWN)}…\n\n(${more.toLocaleString("en")} more characters)`;
}
