/**
 * Puts the page together: the data, the connection and the views, each told of the others here.
 */

import { Chats } from "./chats.js";
import { isAlive, isUnused } from "./model/chat.js";
import { Database } from "./store/database.js";
import { keyStore, lastDraft, read, write } from "./store/storage.js";
import { importedFrom, save } from "./store/transfer.js";
import { by } from "./view/by.js";
import { ChatList } from "./view/chat_list.js";
import { Composer } from "./view/composer.js";
import { LinkView } from "./view/link_view.js";
import { LogView } from "./view/log_view.js";
import { PanelView } from "./view/panel_view.js";
import { SettingsView } from "./view/settings_view.js";
import { listen } from "./view/shortcuts.js";
import { contextWords, spokenWords } from "./view/words.js";
import { Connection } from "./wire/connection.js";

/** @param {string} text for screen readers */
function say(text) {
  by("spoken").textContent = text;
}

const link = new LinkView(by, {
  tryNow: () => void connection.connect(),
  key: (key) => connection.useKey(key),
});

const connection = new Connection(
  keyStore.get(),
  (phase) => link.show(phase),
  (model) => {
    by("model").textContent = model;
    showContext();
  },
);

const database = await Database.open().catch(() => null);
let currentId = "";
/** The chat that was asked for last, which may still be read. */
let wanted = "";

const chats = new Chats(database, connection, {
  onList: () => {
    if (currentId && !chats.get(currentId)) {
      currentId = ""; // it was removed, perhaps in another tab
      showLatest();
    }
    list.show(currentId);
  },
  onChat: (chatId) => {
    if (chatId !== currentId) return;
    log.show(chatId);
    refresh();
  },
  onMessage: (message) => {
    if (message.chatId !== currentId) return;
    log.changed(message);
    refresh();
    if (!isAlive(message)) say(spokenWords(message));
  },
  onSaveFailed: () => {
    by("composer-hint").textContent = "This browser does not let the page keep its chats.";
  },
});

const log = new LogView(
  { log: by("log"), list: by("messages"), latest: by("latest") },
  chats,
  {
    act: (action, message) => {
      switch (action) {
        case "copy":
          return navigator.clipboard.writeText(message.text).then(
            () => (say("Copied"), true),
            () => (tell("The browser did not allow copying."), false),
          );
        case "again":
          return chats.again(message);
        case "thrice":
          return chats.again(message, 3);
        case "take":
          return chats.choose(message);
        case "continue":
          return chats.continue(message);
        case "remove":
          return chats.removeMessage(message);
      }
    },
    ask: (message, text) => chats.edit(message, text),
    switchTo: (message) => chats.switchTo(message),
  },
);

const composer = new Composer(
  {
    form: by("composer"),
    field: by("draft"),
    button: by("go"),
    attach: by("attach"),
    picker: by("attach-file"),
    files: by("files"),
  },
  {
    send: (text, files) => chats.send(currentId, text, files),
    stop: () => chats.stop(currentId),
    draft: (chatId, draft) => {
      if (chats.get(chatId)?.draft !== draft) chats.change(chatId, { draft });
    },
    files: (chatId, files) => chats.keepFiles(chatId, files),
    say: tell,
  },
);

const list = new ChatList(
  { list: by("chat-list"), search: by("search"), empty: by("chat-list-empty") },
  chats,
  { open: (chatId) => void show(chatId) },
);

const settings = new SettingsView(
  { dialog: by("settings"), form: by("settings-form") },
  (changed) => {
    const chat = chats.get(currentId);
    if (chat) chats.change(currentId, { settings: { ...chat.settings, ...changed } });
  },
);

const panel = new PanelView(by("panel"), () => connection.key);

/** @param {string} chatId */
async function show(chatId) {
  wanted = chatId;
  await chats.open(chatId);
  const files = await chats.files(chatId);
  if (wanted !== chatId) return; // the reader is elsewhere by now
  currentId = chatId;
  write("current", chatId);
  composer.show(chatId, chats.get(chatId)?.draft ?? "", files);
  log.show(chatId);
  log.follow();
  list.show(chatId);
  openChats(false);
  refresh();
}

function showLatest() {
  const latest = chats.list[0];
  void show(latest ? latest.id : chats.create().id);
}

/** Goes on where this tab was, with what was being written there. */
async function showFirst() {
  const written = lastDraft.take();
  const last = chats.get(read("current") ?? "") ?? chats.list[0];
  if (written && chats.get(written.chatId)) {
    chats.change(written.chatId, { draft: written.text });
  } else if (written?.text) {
    const chat = chats.create();
    chats.change(chat.id, { draft: written.text });
    return show(chat.id);
  }
  await show(last ? last.id : chats.create().id);
}

function newChat() {
  const unused = chats.list.find(isUnused);
  list.showAll();
  void show((unused ?? chats.create()).id).then(() => composer.focus());
}

/** @param {number} by how many places further down the list */
function step(by) {
  const ids = chats.list.map(({ id }) => id);
  const next = ids[ids.indexOf(currentId) + by];
  if (next) void show(next);
}

function refresh() {
  const chat = chats.get(currentId);
  const runs = chats.runsIn(currentId);
  by("empty").hidden = chat?.leaf !== null;
  by("title").textContent = chat?.title ?? "";
  document.title = chat && chat.leaf !== null ? `${chat.title} · ds4trio` : "ds4trio";
  composer.setBusy(runs.length > 0, runs.length > 0 && runs.every(({ stopping }) => stopping));
  showContext();
}

/** How much of the model's context this chat fills, by its latest answer. */
function showContext() {
  const room = connection.contextLength;
  const stats = chats.path(currentId).findLast(({ stats }) => stats?.promptTokens)?.stats;
  const used = (stats?.promptTokens ?? 0) + (stats?.outputTokens ?? 0);
  by("context").hidden = !room || used === 0;
  if (!room || used === 0) return;
  by("context-text").textContent = contextWords(used, room);
  by("context-fill").style.width = `${Math.min((100 * used) / room, 100)}%`;
}

/** Where the page is narrow, the list of chats lies over the conversation while it is open. */
function chatsLieOver() {
  return by("chats-close").checkVisibility({ visibilityProperty: true });
}

function stopOrClose() {
  if (!chatsLieOver()) return chats.stop(currentId);
  openChats(false);
  by("chats-button").focus();
}

/** @param {boolean} open */
function openChats(open) {
  document.body.toggleAttribute("data-chats", open);
  by("chats-button").setAttribute("aria-expanded", `${open}`);
}

/** @param {boolean} open */
function openPanel(open) {
  panel.show(open);
  by("panel-button").setAttribute("aria-expanded", `${open}`);
  write("panel", open ? "open" : "");
}

async function exportChats() {
  save(chats.list, (await database?.allMessages()) ?? []);
}

/** @param {File} file */
async function importChats(file) {
  try {
    const found = await importedFrom(file);
    await chats.take(found);
    tell(`${found.chats.length === 1 ? "1 chat" : `${found.chats.length} chats`} came in.`);
  } catch (error) {
    tell(error instanceof Error ? error.message : "The file could not be read.");
  }
}

/** @param {string} words below the composer, and for screen readers */
function tell(words) {
  by("composer-hint").textContent = words;
  say(words);
}

by("new-chat").addEventListener("click", newChat);
by("new-chat-here").addEventListener("click", newChat);
by("settings-button").addEventListener("click", () => {
  const chat = chats.get(currentId);
  if (chat) settings.open(chat.settings);
});
by("panel-button").addEventListener("click", () => openPanel(by("panel").hidden === true));
by("chats-button").addEventListener("click", () =>
  openChats(!document.body.hasAttribute("data-chats")),
);
by("chats-close").addEventListener("click", stopOrClose);
by("middle").addEventListener("click", (event) => {
  const opens = /** @type {HTMLElement} */ (event.target).closest("#chats-button");
  if (!opens && chatsLieOver()) openChats(false);
});
by("export").addEventListener("click", () => void exportChats());
by("import").addEventListener("click", () => by("import-file").click());
by("import-file").addEventListener("change", (event) => {
  const picker = /** @type {HTMLInputElement} */ (event.target);
  const file = picker.files?.[0];
  picker.value = "";
  if (file) void importChats(file);
});
by("ideas").addEventListener("click", (event) => {
  const idea = /** @type {HTMLElement} */ (event.target).closest("button");
  if (idea) chats.send(currentId, idea.textContent ?? "");
});
listen(
  [
    { key: "escape", words: "Stop the answer", run: stopOrClose },
    { key: "o", command: true, shift: true, words: "New chat", run: newChat },
    { key: "k", command: true, words: "Search", run: () => (openChats(true), by("search").focus()) },
    { key: "/", words: "Write", run: () => composer.focus() },
    { key: "j", words: "Next chat", run: () => step(1) },
    { key: "k", words: "Chat before", run: () => step(-1) },
    { key: ",", command: true, words: "Settings", run: () => by("settings-button").click() },
    { key: "?", shift: true, words: "These keys", run: () => by("shortcuts-button").click() },
  ],
  { dialog: by("shortcuts"), list: by("shortcuts-list"), button: by("shortcuts-button") },
);

window.addEventListener("pagehide", () => lastDraft.leave(currentId, composer.text));

void connection.connect();
await chats.load();
await showFirst();
openPanel(read("panel") === "open");
composer.focus();
