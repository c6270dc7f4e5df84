/** Finds chats by words in their titles and texts, and the place in each. */

/** Characters of a text that are shown before and after what was found in it. */
const BEFORE = 12;
const AFTER = 120;

/** What is left of a character that was cut in two. */
const HALVES = /^[\udc00-\udfff]|[\ud800-\udbff]$/g;

/**
 * @typedef {object} Found
 * @property {string|null} messageId where the words are; null where the title has them all
 * @property {string} excerpt of that message
 */

/**
 * @param {string} text
 * @returns {string} in small letters, each as long as what it was: İ alone would become two
 */
export function small(text) {
  return text.replaceAll("\u0130", "i").toLowerCase();
}

/**
 * @param {string} query
 * @returns {string[]} its words, in small letters
 */
export function wordsOf(query) {
  return [...new Set(small(query).split(/\s+/).filter(Boolean))];
}

/**
 * @param {import("../model/chat.js").Chat[]} chats
 * @param {import("../model/chat.js").Message[]} messages
 * @param {string} query
 * @returns {Map<string, Found>} by id, the chats that have all of these words
 */
export function search(chats, messages, query) {
  const words = wordsOf(query);
  const own = Map.groupBy(messages, ({ chatId }) => chatId);
  /** @type {Map<string, Found>} */
  const found = new Map();
  for (const { id, title } of chats) {
    const isIn = has(title);
    const missing = words.filter((word) => !isIn(word));
    if (missing.length === 0) {
      found.set(id, { messageId: null, excerpt: "" });
      continue;
    }
    const texts = (own.get(id) ?? []).map(({ id, text }) => ({ id, text, isIn: has(text) }));
    if (!missing.every((word) => texts.some(({ isIn }) => isIn(word)))) continue;
    const best = texts.find(({ isIn }) => words.every(isIn)) ?? texts.find(({ isIn }) => missing.some(isIn));
    if (best) found.set(id, { messageId: best.id, excerpt: excerpt(best.text, words) });
  }
  return found;
}

/**
 * @param {string} text
 * @returns {(word: string) => boolean}
 */
function has(text) {
  const lower = small(text);
  return (word) => lower.includes(word);
}

/**
 * @param {string} text
 * @param {string[]} words at least one is in it
 * @returns {string} some of the text, with the first of the words near its beginning
 */
function excerpt(text, words) {
  const lower = small(text);
  const at = Math.min(...words.map((word) => lower.indexOf(word)).filter((place) => place >= 0));
  const space = text.indexOf(" ", at - BEFORE);
  const from = at <= BEFORE ? 0 : space < 0 || space > at ? at - BEFORE : space;
  const whole = text.slice(from, at + AFTER).replace(HALVES, "");
  const part = whole.replace(/[*`#|]+/g, "").replace(/\s+/g, " ").trim();
  return from > 0 ? `… ${part}` : part;
}
