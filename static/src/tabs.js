/**
 * Takes in what another tab of this browser did to the chats. While it reads, this tab goes on: what
 * is newer here than what was read stays.
 */

import { isAlive } from "./model/chat.js";

/**
 * @typedef {import("./model/chat.js").Chat} Chat
 * @typedef {import("./model/chat.js").Tree} Tree
 * @typedef {import("./store/database.js").Change} Change
 * @typedef {import("./store/database.js").Database} Database
 */

/**
 * @typedef {object} Here what this tab has
 * @property {Map<string, Chat>} chats
 * @property {Map<string, Tree>} trees of the chats that were opened
 * @property {(messageId: string) => boolean} isOurs this tab writes the message
 * @property {Set<string>} touched chats that this tab has changed since the last reading began
 */

/**
 * @param {Database} database
 * @param {Change} change
 * @param {Here} here is changed
 * @returns {Promise<boolean>} whether messages of the chat are others
 */
export async function takeIn(database, change, { chats, trees, isOurs, touched }) {
  if (change.kind === "message") {
    const tree = trees.get(change.chatId);
    if (!tree || isOurs(change.messageId)) return false;
    const message = await database.message(change.messageId);
    if (message && !isOurs(message.id)) renew(tree, message);
    return message !== undefined;
  }
  await takeChats(database, chats, trees, touched);
  const tree = change.kind === "chat" ? trees.get(change.chatId) : undefined;
  if (change.kind !== "chat" || !tree) return false;
  const had = new Set(tree.keys());
  const messages = await database.messages(change.chatId);
  for (const id of had) if (!messages.has(id) && !isOurs(id)) tree.delete(id);
  for (const message of messages.values()) {
    const isGone = had.has(message.id) && !tree.has(message.id);
    if (!isGone && !isOurs(message.id)) renew(tree, message);
  }
  return true;
}

/**
 * @param {Database} database
 * @param {Map<string, Chat>} chats
 * @param {Map<string, Tree>} trees
 * @param {Set<string>} touched
 */
async function takeChats(database, chats, trees, touched) {
  touched.clear();
  const found = await database.chats();
  const known = new Set(found.map(({ id }) => id));
  for (const chat of found) {
    if (touched.has(chat.id)) continue;
    const own = chats.get(chat.id);
    // Each tab has its own place in a chat.
    if (own) Object.assign(own, chat, { leaf: own.leaf });
    else chats.set(chat.id, chat);
  }
  for (const { id, draft } of [...chats.values()]) {
    const isNew = (trees.get(id)?.size ?? 0) === 0 && draft === "";
    if (known.has(id) || touched.has(id) || isNew) continue;
    chats.delete(id);
    trees.delete(id);
  }
}

/**
 * @param {Tree} tree
 * @param {import("./model/chat.js").Message} message as it was read; views hold the one that was
 */
function renew(tree, message) {
  const old = tree.get(message.id);
  if (old && !isAlive(old) && isAlive(message)) return; // what has ended meanwhile stays so
  if (old) Object.assign(old, message);
  else tree.set(message.id, message);
}
