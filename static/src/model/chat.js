/**
 * What a chat is: plain data, and what can be read off it. A chat is a tree of messages, so that
 * an edited question or a second answer loses nothing; what is shown is one path through it.
 */

/**
 * An answer: "waiting" (nothing has come), "prefill" (the prompt is being read), "reasoning" and
 * "answering" are alive; the rest are ends: "done", "cut" (length limit), "stopped" (by the
 * reader), "interrupted" (it could not be followed to its end), "failed" (the server said why). A
 * question is "done".
 * @typedef {"waiting"|"prefill"|"reasoning"|"answering"|"done"|"cut"|"stopped"|"interrupted"|"failed"} Status
 */

/**
 * @typedef {object} Stats figures of an answer, each null where it is not known
 * @property {number|null} promptTokens
 * @property {number|null} cachedTokens of the prompt, not evaluated again
 * @property {number|null} outputTokens
 * @property {number|null} reasoningTokens
 * @property {number|null} firstTokenSeconds
 * @property {number|null} tokensPerSecond
 * @property {number|null} batchSize mean number of answers in the batches of this one
 */

/** @typedef {{code: string, message: string}} Fault */

/** @typedef {{name: string, text: string}} Attachment a file, read as text */

/** @typedef {{name: string, arguments: string}} Call of a function; arguments are JSON as it came */


/**
 * @typedef {object} Message
 * @property {string} id
 * @property {string} chatId
 * @property {string|null} parent id of the message before it
 * @property {"user"|"assistant"} role
 * @property {number} createdAt milliseconds since 1970
 * @property {string} text
 * @property {Attachment[]} attachments of a question
 * @property {string} reasoning of an answer
 * @property {Call[]} calls of an answer
 * @property {Status} status
 * @property {Stats|null} stats
 * @property {Fault|null} fault
 * @property {string|null} responseId of an answer, at the server
 * @property {number} sequence number of the last event that is in the message; -1 before the first
 */

/**
 * What a chat asks of the server; null leaves it to the server.
 * @typedef {object} Settings
 * @property {string} system
 * @property {number|null} temperature
 * @property {number|null} topP
 * @property {number|null} topK
 * @property {number|null} minP
 * @property {number|null} maxTokens
 * @property {number|null} seed
 * @property {"none"|"low"|"medium"|"high"|null} effort of reasoning
 * @property {string} more an object in JSON: other fields of the request; empty for none
 */

/**
 * @typedef {object} Chat
 * @property {string} id
 * @property {string} title
 * @property {boolean} named the reader chose the title
 * @property {boolean} pinned
 * @property {number} createdAt
 * @property {number} updatedAt
 * @property {string|null} leaf id of the last message that is shown
 * @property {string} draft what is being written
 * @property {number} [files] how many wait to go along with it
 * @property {Record<string, string>} [edits] other words for questions that are being written, by
 *   the question's id
 * @property {string[]} [candidates] ids of answers that were asked for together, for the reader to
 *   choose from; none once that is done
 * @property {Settings} settings
 */

/** @typedef {Map<string, Message>} Tree the messages of one chat by id */

/** Of a title that the reader, or a file, gives a chat. */
export const MOST_TITLE_CHARACTERS = 200;

const TITLE_CHARACTERS = 60;

/** The likeliest words: a small model strays from the point with any others. */
const TEMPERATURE = 0;

/** At 0 a second answer would have the words of the first. */
const TEMPERATURE_AGAIN = 0.7;

/** @type {readonly Status[]} */
export const ALIVE = ["waiting", "prefill", "reasoning", "answering"];

/** @param {Message} message */
export function isAlive(message) {
  return ALIVE.includes(message.status);
}

/** randomUUID exists only in secure contexts, and the page may be served over plain http. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(36)).join("");
}

/** @returns {Settings} */
export function defaultSettings() {
  return {
    system: "",
    temperature: TEMPERATURE,
    topP: null,
    topK: null,
    minP: null,
    maxTokens: null,
    seed: null,
    effort: null,
    more: "",
  };
}

/**
 * @param {number} now
 * @param {Settings} [settings]
 * @returns {Chat}
 */
export function newChat(now, settings = defaultSettings()) {
  return {
    id: newId(),
    title: UNTITLED,
    named: false,
    pinned: false,
    createdAt: now,
    updatedAt: now,
    leaf: null,
    draft: "",
    settings: { ...settings },
  };
}

/**
 * @param {Chat} chat
 * @param {Message[]} versions of the answer, itself among them
 * @param {Message} answer that is asked for
 * @returns {Settings} for it: the chat's own for the first one; others are to differ from that
 */
export function settingsFor({ settings }, versions, answer) {
  const number = versions.indexOf(answer);
  if (number < 1 || answer.text !== "") return settings; // one with a text is continued
  const { temperature, seed } = settings;
  return {
    ...settings,
    temperature: temperature === 0 ? TEMPERATURE_AGAIN : temperature,
    seed: seed === null ? null : (seed + number) % 2 ** 53,
  };
}

const UNTITLED = "New chat";

/** @param {Chat} chat to which the reader has done nothing yet, or nothing that is left */
export function isUnused({ leaf, draft, files, named, pinned, settings }) {
  const isTouched = named || pinned || isSet(settings);
  return leaf === null && draft === "" && !files && !isTouched;
}

/** @param {Settings} settings that the reader has changed */
export function isSet(settings) {
  const plain = defaultSettings();
  const own = { ...plain, ...settings }; // older chats lack some
  return Object.entries(plain).some(
    ([name, value]) => own[/** @type {keyof Settings} */ (name)] !== value,
  );
}

/**
 * @param {Pick<Message, "chatId"|"parent"|"role"> & Partial<Message>} given
 * @param {number} now
 * @returns {Message}
 */
export function newMessage(given, now) {
  return {
    id: newId(),
    createdAt: now,
    text: "",
    attachments: [],
    reasoning: "",
    calls: [],
    status: given.role === "user" ? "done" : "waiting",
    stats: null,
    fault: null,
    responseId: null,
    sequence: -1,
    ...given,
  };
}

/**
 * @param {Tree} tree
 * @param {string|null} leaf
 * @returns {Message[]} from the first message to the leaf
 */
export function pathTo(tree, leaf) {
  const path = [];
  const seen = new Set();
  for (let id = leaf; id !== null && !seen.has(id); ) {
    const message = tree.get(id);
    if (!message) break;
    seen.add(id);
    path.push(message);
    id = message.parent;
  }
  return path.reverse();
}

/**
 * @param {Tree} tree
 * @returns {(message: Message) => Message[]} tells all versions of a message of the tree as it is
 *   now, itself among them, oldest first
 */
export function versionsIn(tree) {
  const place = (/** @type {Message} */ { parent, role }) => `${role} ${parent}`;
  const groups = Map.groupBy(tree.values(), place);
  for (const group of groups.values()) group.sort((a, b) => a.createdAt - b.createdAt);
  return (message) => groups.get(place(message)) ?? [];
}

/**
 * @param {Tree} tree
 * @param {Chat} chat
 * @returns {Message[]} the answers from which the reader has yet to choose, the one that is shown
 *   last among them; empty where that is not one of several
 */
export function candidatesIn(tree, { leaf, candidates = [] }) {
  const shown = tree.get(leaf ?? "");
  if (shown === undefined || !candidates.includes(shown.id)) return [];
  const found = [];
  for (const id of new Set(candidates)) {
    const message = tree.get(id);
    if (message?.parent === shown.parent && message.role === "assistant") found.push(message);
  }
  return found.length > 1 ? found : [];
}

/**
 * @param {Tree} tree
 * @param {string} id
 * @returns {string} the leaf below it that was written last; itself where it is one
 */
export function newestLeafBelow(tree, id) {
  const children = Map.groupBy(tree.values(), ({ parent }) => parent);
  let leaf = id;
  let writtenAt = -Infinity;
  const found = new Set([id]);
  for (const one of found) {
    for (const child of children.get(one) ?? []) {
      found.add(child.id);
      if (children.has(child.id) || child.createdAt <= writtenAt) continue;
      leaf = child.id;
      writtenAt = child.createdAt;
    }
  }
  return leaf;
}

/**
 * The message that a chat showed last may be gone, by another tab's doing, or that tab has written
 * the first one; and a file may say anything.
 * @param {Chat} chat
 * @param {Tree} tree its messages
 */
export function mend(chat, tree) {
  if (tree.has(chat.leaf ?? "")) return;
  const first = [...tree.values()].findLast(({ parent }) => parent === null);
  chat.leaf = first ? newestLeafBelow(tree, first.id) : null;
}

/**
 * @param {Tree} tree
 * @param {string} id
 * @returns {string[]} ids of this message and all that follow it, on whatever branch
 */
export function allBelow(tree, id) {
  const children = Map.groupBy(tree.values(), ({ parent }) => parent);
  const found = new Set([id]);
  for (const one of found) for (const child of children.get(one) ?? []) found.add(child.id);
  return [...found];
}

/**
 * @param {string} text of the first question
 * @returns {string}
 */
export function titleFrom(text) {
  const line = text.trim().split("\n")[0] ?? "";
  const characters = [...line.slice(0, 4 * TITLE_CHARACTERS)];
  if (characters.length <= TITLE_CHARACTERS) return line || UNTITLED;
  return `${characters.slice(0, TITLE_CHARACTERS).join("").trimEnd()}…`;
}
