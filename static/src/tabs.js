/** Takes in what another tab of this browser did to the chats. */

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
 */

/**
 * @param {Database} database
 * @param {Change} change
 * @param {Here} here is changed
 * @returns {Promise<boolean>} whether messages of the chat are others
 */
export async function takeIn(database, change, { chats, trees, isOurs }) {
  if (change.kind === "message") {
    const tree = trees.get(change.chatId);
    if (!tree || isOurs(change.messageId)) return false;
    const message = await database.message(change.messageId);
    if (message) renew(tree, message);
    return message !== undefined;
  }
  await takeChats(database, chats, trees);
  const tree = change.kind === "chat" ? trees.get(change.chatId) : undefined;
  if (change.kind !== "chat" || !tree) return false;
  const messages = await database.messages(change.chatId);
  for (const id of [...tree.keys()]) if (!messages.has(id) && !isOurs(id)) tree.delete(id);
  for (const message of messages.values()) if (!isOurs(message.id)) renew(tree, message);
  return true;
}

/**
 * @param {Database} database
 * @param {Map<string, Chat>} chats
 * @param {Map<string, Tree>} trees
 */
async function takeChats(database, chats, trees) {
  const found = await database.chats();
  const known = new Set(found.map(({ id }) => id));
  for (const chat of found) {
    const own = chats.get(chat.id);
    // Each tab has its own place in a chat.
    if (own) Object.assign(own, chat, { leaf: own.leaf });
    else chats.set(chat.id, chat);
  }
  for (const { id, draft } of [...chats.values()]) {
    const isNew = (trees.get(id)?.size ?? 0) === 0 && draft === "";
    if (known.has(id) || isNew) continue;
    chats.delete(id);
    trees.delete(id);
  }
}

/**
 * @param {Tree} tree
 * @param {import("./model/chat.js").Message} message as it is now; views hold the one that was
 */
function renew(tree, message) {
  const old = tree.get(message.id);
  if (old) Object.assign(old, message);
  else tree.set(message.id, message);
}
