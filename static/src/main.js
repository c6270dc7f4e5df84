/**
 * Puts the page together: the data, the connection and the views, each told of the others here.
 */

import { Chats } from "./chats.js";
import { isSet, isUnused } from "./model/chat.js";
import { Database } from "./store/database.js";
import { keyStore, lastDrafts, read, write } from "./store/storage.js";
import { importedFrom, newIn, save } from "./store/transfer.js";
import { by } from "./view/by.js";
import { ChatList } from "./view/chat_list.js";
import { LinkView } from "./view/link_view.js";
import { PanelView } from "./view/panel_view.js";
import { Panes } from "./view/panes.js";
import { SettingsView } from "./view/settings_view.js";
import { listen } from "./view/shortcuts.js";
import { importWords } from "./view/words.js";
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
    for (const pane of panes.all) pane.showContext();
  },
);

const database = await Database.open().catch(() => null);

const chats = new Chats(database, connection, {
  onList: () => {
    if (panes.leaveGone()) showLatest();
    showList();
    for (const pane of panes.all) pane.showTitle();
    showTitle();
  },
  onChat: (chatId) => {
    panes.showing(chatId)?.changed();
    showTitle();
  },
  onMessage: (message) => panes.showing(message.chatId)?.changedMessage(message),
  onSaveFailed: () => {
    panes.active.tell("This browser does not let the page keep its chats.");
  },
});

const panes = new Panes(chats, connection, { say, changed: showPanes });

const list = new ChatList(
  { list: by("chat-list"), search: by("search"), empty: by("chat-list-empty") },
  chats,
  {
    open: (chatId) => void show(chatId),
    openBeside: (chatId) => void panes.showBeside(chatId),
    openAt: (chatId, messageId, query) =>
      void show(chatId).then(() => panes.showing(chatId)?.goTo(messageId, query)),
  },
);

const settings = new SettingsView(
  { dialog: by("settings"), form: by("settings-form") },
  (chatId, changed) => {
    const chat = chats.get(chatId);
    if (chat) chats.change(chat.id, { settings: { ...chat.settings, ...changed } });
  },
);

const panel = new PanelView(by("panel"), () => connection.key, () => {
  openPanel(false);
  by("panel-button").focus();
});

/** @param {string} chatId */
async function show(chatId) {
  await panes.show(chatId);
  openChats(false);
}

function showLatest() {
  const latest = chats.list[0];
  void show(latest ? latest.id : chats.create().id);
}

/** Goes on where this tab was, with what was being written there. */
async function showFirst() {
  let unsaved = "";
  for (const { chatId, text } of lastDrafts.take()) {
    const chat = chats.get(chatId) ?? (text ? chats.create() : undefined);
    if (!chat) continue;
    if (chat.id !== chatId) unsaved = chat.id;
    chats.change(chat.id, { draft: text });
  }
  const last = chats.get(unsaved) ?? chats.get(read("current") ?? "") ?? chats.list[0];
  const beside = chats.get(read("beside") ?? "");
  await show(last ? last.id : chats.create().id);
  if (panes.active.chatId === "") await show(chats.create().id); // that one cannot be read
  if (beside && beside !== last && panes.haveRoom) await panes.showBeside(beside.id);
}

function newChat() {
  list.showAll();
  const here = chats.get(panes.active.chatId);
  const chat = here && isUnused(here) ? here : unusedChat();
  void show(chat.id).then(() => panes.active.composer.focus());
}

/** @returns {import("./model/chat.js").Chat} that is not open, with nothing in it */
function unusedChat() {
  const unused = chats.list.find((chat) => isUnused(chat) && !panes.showing(chat.id));
  return unused ?? chats.create();
}

/** Opens another chat beside the one where the reader is, or leaves only that. */
function switchBeside() {
  if (panes.other) return panes.close();
  if (!panes.haveRoom) return;
  void panes.showBeside(unusedChat().id).then(() => panes.active.composer.focus());
}

/** @param {number} by how many places further down the list */
function step(by) {
  const ids = chats.list.map(({ id }) => id);
  const next = ids[ids.indexOf(panes.active.chatId) + by];
  if (next) void show(next);
}

/** Other chats are open, or the reader is at the other one. */
function showPanes() {
  const [first, second] = panes.all;
  write("current", first?.chatId ?? "");
  write("beside", second?.chatId ?? "");
  by("beside-button").setAttribute("aria-pressed", `${second !== undefined}`);
  showList();
  showTitle();
}

function showList() {
  list.show(panes.active.chatId, panes.other?.chatId);
}

function showTitle() {
  const chat = chats.get(panes.active.chatId);
  by("title").textContent = chat?.title ?? "";
  document.title = chat && chat.leaf !== null ? `${chat.title} · ds4trio` : "ds4trio";
  const isChanged = chat !== undefined && isSet(chat.settings);
  const button = by("settings-button");
  button.toggleAttribute("data-changed", isChanged);
  button.title = isChanged ? "Settings, changed for this chat" : "Settings";
}

/** Where the page is narrow, the list of chats lies over the conversation while it is open. */
function chatsLieOver() {
  return by("chats-close").checkVisibility({ visibilityProperty: true });
}

function stopOrClose() {
  if (!chatsLieOver()) return panes.active.stop();
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
  try {
    save(chats.list, await chats.messages());
  } catch {
    panes.active.tell("This browser does not let the page read all its chats. A reload may help.");
  }
}

/** @param {File} file */
async function importChats(file) {
  try {
    const found = await importedFrom(file);
    const added = newIn(found, chats.list);
    await chats.take(added);
    panes.active.tell(importWords(found.chats.length, added.chats.length));
  } catch (error) {
    panes.active.tell(error instanceof Error ? error.message : "The file could not be read.");
  }
}

by("new-chat").addEventListener("click", newChat);
by("new-chat-here").addEventListener("click", newChat);
by("settings-button").addEventListener("click", () => {
  const chat = chats.get(panes.active.chatId);
  if (chat) settings.open(chat);
});
by("beside-button").addEventListener("click", switchBeside);
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
listen(
  [
    { key: "escape", words: "Stop the answer", run: stopOrClose },
    { key: "o", command: true, shift: true, words: "New chat", run: newChat },
    { key: "k", command: true, words: "Search", run: () => (openChats(true), by("search").focus()) },
    { key: "/", words: "Write", run: () => panes.active.composer.focus() },
    { key: "b", words: "Two chats side by side, or one", run: switchBeside },
    { key: "j", steps: true, words: "Next chat", run: () => step(1) },
    { key: "k", steps: true, words: "Previous chat", run: () => step(-1) },
    { key: ",", command: true, words: "Settings", run: () => by("settings-button").click() },
    { key: "?", words: "These keys", run: () => by("shortcuts-button").click() },
  ],
  { dialog: by("shortcuts"), list: by("shortcuts-list"), button: by("shortcuts-button") },
);

// A browser leaves the page for a file that is dropped where nothing takes it.
for (const kind of /** @type {const} */ (["dragover", "drop"]))
  window.addEventListener(kind, (event) => {
    if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "none";
  });
window.addEventListener("pagehide", () =>
  lastDrafts.leave(panes.all.map(({ chatId, composer }) => ({ chatId, text: composer.text }))),
);

void connection.connect();
const isRead = await chats.load().then(
  () => true,
  () => false,
);
await showFirst();
if (!isRead)
  panes.active.tell("This browser does not let the page read all its chats. A reload may help.");
openPanel(read("panel") === "open");
panes.active.composer.focus();
