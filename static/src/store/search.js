/** Finds chats by words in their titles and texts. */

/**
 * @param {import("../model/chat.js").Chat[]} chats
 * @param {import("../model/chat.js").Message[]} messages
 * @param {string} query
 * @returns {Set<string>} ids of the chats that have all of these words
 */
export function search(chats, messages, query) {
  const words = query.toLocaleLowerCase().split(/\s+/).filter(Boolean);
  const texts = new Map(chats.map(({ id, title }) => [id, [title]]));
  for (const { chatId, text } of messages) texts.get(chatId)?.push(text);
  const found = [...texts].filter(([, parts]) => {
    const lower = parts.join("\n").toLocaleLowerCase();
    return words.every((word) => lower.includes(word));
  });
  return new Set(found.map(([id]) => id));
}
