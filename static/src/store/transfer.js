/**
 * All chats as one file, and back. What comes in is checked, since a file may be anything.
 */

import {
  MOST_TITLE_CHARACTERS,
  defaultSettings,
  newChat,
  newId,
  newMessage,
} from "../model/chat.js";

/**
 * @typedef {import("../model/chat.js").Chat} Chat
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("../model/chat.js").Status} Status
 */

const KIND = "ds4trio-chats";
const VERSION = 1;

const EFFORTS = ["none", "low", "medium", "high"];
/** @type {readonly Status[]} */
const ENDS = ["done", "cut", "stopped", "failed"];

/** Bytes of a file of chats. */
const MOST_IMPORTED = 256_000_000;

/**
 * Has the browser keep them as a file.
 * @param {Chat[]} chats
 * @param {Message[]} messages
 */
export function save(chats, messages) {
  const json = JSON.stringify({ kind: KIND, version: VERSION, chats, messages }, null, 1);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([json], { type: "application/json" }));
  link.download = `ds4trio-chats-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * @param {{chats: Chat[], messages: Message[]}} found
 * @param {Chat[]} here
 * @returns {{chats: Chat[], messages: Message[]}} less the chats that are here as they are there
 */
export function newIn({ chats: found, messages }, here) {
  const looks = (/** @type {Chat} */ { title, createdAt, updatedAt }) =>
    JSON.stringify([title, createdAt, updatedAt]);
  const known = new Set(here.map(looks));
  const chats = found.filter((chat) => chat.createdAt === 0 || !known.has(looks(chat)));
  const ids = new Set(chats.map(({ id }) => id));
  return { chats, messages: messages.filter(({ chatId }) => ids.has(chatId)) };
}

/**
 * Reads what `save` wrote. Everything gets new names, so that nothing here is overwritten.
 * @param {File} file
 * @returns {Promise<{chats: Chat[], messages: Message[]}>}
 * @throws {Error} with words for the reader
 */
export async function importedFrom(file) {
  if (file.size > MOST_IMPORTED) throw new Error("This file is too large.");
  return imported(await file.text());
}

/**
 * @param {string} text
 * @returns {{chats: Chat[], messages: Message[]}}
 * @throws {Error} with words for the reader
 */
function imported(text) {
  const data = parsed(text);
  if (data?.kind !== KIND || !Array.isArray(data.chats) || !Array.isArray(data.messages)) {
    throw new Error("This file has no chats of this page.");
  }
  if (data.version !== VERSION) throw new Error("This file is of a newer page than this one.");
  const chats = data.chats.filter(isObject);
  const messages = data.messages.filter(isObject);
  /** @type {Map<string, string>} */
  const names = new Map();
  for (const { id } of [...chats, ...messages]) {
    const name = nameIn(id);
    if (name !== null) names.set(name, newId());
  }
  const known = new Set(chats.map((/** @type {any} */ { id }) => nameIn(id)));
  known.delete(null);
  return {
    chats: chats.map((/** @type {any} */ chat) => chatFrom(chat, names)),
    messages: messages
      .filter((/** @type {any} */ { chatId }) => known.has(nameIn(chatId)))
      .map((/** @type {any} */ message) => messageFrom(message, names)),
  };
}

/**
 * @param {unknown} id
 * @returns {string|null} null for what is none
 */
function nameIn(id) {
  return typeof id === "string" || typeof id === "number" ? `${id}` : null;
}

/**
 * @param {unknown} id
 * @param {Map<string, string>} names
 * @returns {string|null} the new name of what came along; null where nothing did
 */
function renamed(id, names) {
  const name = nameIn(id);
  return name === null ? null : (names.get(name) ?? null);
}

/** @param {unknown} value */
function isObject(value) {
  return typeof value === "object" && value !== null;
}

/**
 * @param {string} text
 * @returns {any}
 */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
}

/**
 * @param {any} data
 * @param {Map<string, string>} names
 * @returns {Chat}
 */
function chatFrom(data, names) {
  const chat = like(newChat(0), data);
  return {
    ...chat,
    id: renamed(data.id, names) ?? newId(),
    title: chat.title.slice(0, MOST_TITLE_CHARACTERS),
    leaf: renamed(data.leaf, names),
    candidates: namesOf(data.candidates, names),
    files: 0, // they stay with the draft, in the browser
    settings: settingsFrom(data.settings),
  };
}

/**
 * @param {unknown} ids
 * @param {Map<string, string>} names
 * @returns {string[]} the names of those that came along
 */
function namesOf(ids, names) {
  if (!Array.isArray(ids)) return [];
  return ids.map((id) => renamed(id, names)).filter((name) => name !== null);
}

/** @param {any} data */
function settingsFrom(data) {
  const settings = like(defaultSettings(), data ?? {});
  const { system, effort, more, ...numbers } = settings;
  for (const [name, value] of Object.entries(numbers)) {
    if (data?.[name] === null || (value !== null && !Number.isFinite(value))) Object.assign(settings, { [name]: null });
  }
  return { ...settings, effort: EFFORTS.includes(`${effort}`) ? effort : null };
}

/**
 * @param {any} data
 * @param {Map<string, string>} names
 * @returns {Message}
 */
function messageFrom(data, names) {
  const role = data.role === "user" ? "user" : "assistant";
  const message = like(newMessage({ chatId: "", parent: null, role }, 0), data);
  return {
    ...message,
    id: renamed(data.id, names) ?? newId(),
    chatId: renamed(data.chatId, names) ?? "",
    parent: renamed(data.parent, names),
    role,
    status: ENDS.includes(message.status) ? message.status : "interrupted",
    attachments: texts(data.attachments, ["name", "text"]),
    calls: texts(data.calls, ["name", "arguments"]),
    stats: null,
    fault: null,
    responseId: null, // another server, or a later one, does not know it
    sequence: -1,
  };
}

/**
 * The form's fields with the data's values, where these are of the same kind.
 * @template {object} T
 * @param {T} form
 * @param {any} data
 * @returns {T}
 */
function like(form, data) {
  const filled = /** @type {any} */ ({ ...form });
  for (const [name, value] of Object.entries(form)) {
    const given = data[name];
    const fits = value === null ? ["number", "string"].includes(typeof given) : true;
    if (fits && (value === null || typeof given === typeof value) && given !== null) {
      filled[name] = given;
    }
  }
  return filled;
}

/**
 * @template {string} T
 * @param {unknown} list
 * @param {T[]} names
 * @returns {Record<T, string>[]}
 */
function texts(list, names) {
  if (!Array.isArray(list)) return [];
  return list.map((one) =>
    /** @type {Record<T, string>} */ (
      Object.fromEntries(names.map((name) => [name, stringIn(one?.[name])]))
    ),
  );
}

/** @param {unknown} value */
function stringIn(value) {
  return typeof value === "string" ? value : "";
}
