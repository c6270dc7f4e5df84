/**
 * What a conversation is: plain data, its limits, and what of it the model gets to read.
 */

/**
 * "waiting" and "streaming" are alive; the rest are ends: "done", "cut" (length limit), "stopped"
 * (by the reader), "interrupted" (connection or page lost), "failed" (the server said why).
 * @typedef {"waiting"|"streaming"|"done"|"cut"|"stopped"|"interrupted"|"failed"} TurnStatus
 */

/**
 * @typedef {object} TurnStats
 * @property {number|null} tokensPerSecond
 * @property {number|null} tokens tokens of the answer
 * @property {number|null} firstTokenSeconds from the request to its first token
 * @property {number|null} batchSize mean number of answers in the batches of this one
 */

/**
 * @typedef {object} Fault
 * @property {string} code
 * @property {string} message
 */

/**
 * One question and its answer.
 * @typedef {object} Turn
 * @property {string} id
 * @property {string} user
 * @property {string} answer
 * @property {TurnStatus} status
 * @property {TurnStats|null} stats
 * @property {Fault|null} fault
 */

/**
 * @typedef {object} Chat
 * @property {Turn[]} turns oldest first
 * @property {string|null} readFrom id of the first turn the model still reads; null is all of them
 */

/** @typedef {{type: "message", role: "user"|"assistant", content: string}} InputItem */

/** A saved chat holds at most this many characters; the oldest turns go first. */
const SAVED_CHARACTERS = 400_000;

/** @type {readonly string[]} */
const ENDS = ["done", "cut", "stopped", "interrupted", "failed"];

/** @returns {Chat} */
export function emptyChat() {
  return { turns: [], readFrom: null };
}

/**
 * @param {string} user
 * @returns {Turn}
 */
export function newTurn(user) {
  // randomUUID exists only in secure contexts, and the page may be served over plain http.
  const id = Array.from(crypto.getRandomValues(new Uint32Array(3)), (n) => n.toString(36)).join("");
  return { id, user, answer: "", status: "waiting", stats: null, fault: null };
}

/** @param {Turn} turn */
export function isAlive(turn) {
  return turn.status === "waiting" || turn.status === "streaming";
}

/**
 * The earlier turns that the model reads before `current`. A question without an answer is left
 * out: the server refused it or never saw it, and it would be refused again.
 * @param {Chat} chat
 * @param {Turn} current
 * @returns {Turn[]}
 */
export function turnsBefore(chat, current) {
  const end = chat.turns.indexOf(current);
  const start = chat.turns.findIndex((turn) => turn.id === chat.readFrom);
  return chat.turns
    .slice(Math.max(start, 0), end < 0 ? undefined : end)
    .filter((turn) => turn.answer !== "" && !isAlive(turn));
}

/**
 * @param {Turn[]} earlier
 * @param {string} user the new question
 * @returns {InputItem[]}
 */
export function asItems(earlier, user) {
  /** @type {InputItem[]} */
  const items = [];
  for (const turn of earlier) {
    items.push({ type: "message", role: "user", content: turn.user });
    items.push({ type: "message", role: "assistant", content: turn.answer });
  }
  items.push({ type: "message", role: "user", content: user });
  return items;
}

/**
 * The chat as text for storage, its oldest turns left out beyond `limit` characters. The newest
 * turn is always kept.
 * @param {Chat} chat
 * @param {number} [limit]
 */
export function toSaved(chat, limit = SAVED_CHARACTERS) {
  let first = chat.turns.length;
  for (let room = limit; first > 0; first -= 1) {
    const turn = chat.turns[first - 1];
    room -= turn.user.length + turn.answer.length + 200;
    if (room < 0 && first < chat.turns.length) break;
  }
  return JSON.stringify({ version: 1, turns: chat.turns.slice(first), readFrom: chat.readFrom });
}

/**
 * Reads what `toSaved` wrote. An answer that was alive then was interrupted. Anything unexpected
 * is null, since storage can hold the work of another version or another page.
 * @param {string|null} text
 * @returns {Chat|null}
 */
export function fromSaved(text) {
  if (text === null) return null;
  try {
    const data = JSON.parse(text);
    if (data.version !== 1 || !Array.isArray(data.turns)) return null;
    return {
      turns: data.turns.map(turnFromSaved),
      readFrom: typeof data.readFrom === "string" ? data.readFrom : null,
    };
  } catch {
    return null;
  }
}

/**
 * @param {any} data
 * @returns {Turn}
 */
function turnFromSaved(data) {
  if (![data.id, data.user, data.answer].every((value) => typeof value === "string")) {
    throw new TypeError("not a saved turn");
  }
  const { fault, stats } = data;
  return {
    id: data.id,
    user: data.user,
    answer: data.answer,
    status: ENDS.includes(data.status) ? data.status : "interrupted",
    fault: fault ? { code: String(fault.code), message: String(fault.message) } : null,
    stats: stats ? statsFrom(stats) : null,
  };
}

/**
 * @param {any} data
 * @returns {TurnStats}
 */
function statsFrom(data) {
  return {
    tokensPerSecond: numberOrNull(data.tokensPerSecond),
    tokens: numberOrNull(data.tokens),
    firstTokenSeconds: numberOrNull(data.firstTokenSeconds),
    batchSize: numberOrNull(data.batchSize),
  };
}

/**
 * @param {unknown} value
 * @returns {number|null}
 */
export function numberOrNull(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
