/**
 * Puts the page together: elements, conversation and connection, each told of the others here.
 */

import { isAlive } from "./chat.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { Conversation } from "./conversation.js";
import { LinkView } from "./link_view.js";
import { LogView } from "./log_view.js";
import { keyStore } from "./storage.js";
import { endWords, faultWords } from "./words.js";

/** @param {string} id */
function by(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element ${id}`);
  return element;
}

/** Read out a finished answer whole up to this length; beyond it, only say that it is there. */
const SPOKEN_CHARACTERS = 500;

/** @param {string} text for screen readers */
function say(text) {
  by("spoken").textContent = text;
}

/** @param {import("./chat.js").Turn} turn */
function endOf(turn) {
  const fault = faultWords(turn);
  if (fault) return fault.headline;
  const short = turn.answer.length <= SPOKEN_CHARACTERS;
  return `${short ? turn.answer : "The answer is finished."} ${endWords(turn)}`;
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
  },
);

const conversation = new Conversation(connection, {
  onChat: () => {
    log.showChat();
    refresh();
  },
  onTurn: (turn, meter) => {
    log.turnChanged(turn, meter);
    refresh();
    if (!isAlive(turn)) say(endOf(turn));
  },
  onSaveFailed: () => {
    by("composer-hint").textContent =
      "This browser does not let the page keep the chat through a reload.";
  },
});

const log = new LogView(
  { log: by("log"), list: by("turns"), latest: by("latest") },
  conversation,
  (action, turn) => {
    switch (action) {
      case "copy":
        return void navigator.clipboard.writeText(turn.answer).then(
          () => say("Copied"),
          () => say("The browser did not allow copying"),
        );
      case "again":
        conversation.tryAgain();
        break;
      case "forget":
        conversation.forgetEarlier();
        break;
      case "edit": {
        // What is being written now stays, below what comes back.
        const taken = conversation.takeBack();
        composer.text = [taken, composer.text].filter((text) => text !== "").join("\n\n");
        break;
      }
    }
    composer.focus();
  },
);

const composer = new Composer(
  {
    form: /** @type {HTMLFormElement} */ (by("composer")),
    field: /** @type {HTMLTextAreaElement} */ (by("draft")),
    button: /** @type {HTMLButtonElement} */ (by("go")),
  },
  {
    send: (text) => conversation.send(text),
    stop: () => conversation.stop(),
  },
);

let refreshed = "";

/** Brings the buttons in line; called for every delta, so it does nothing where nothing changed. */
function refresh() {
  const { busy, stopping } = conversation;
  const empty = conversation.chat.turns.length === 0;
  const state = `${busy} ${stopping} ${empty}`;
  if (state === refreshed) return;
  refreshed = state;
  composer.setBusy(busy, stopping);
  by("empty").hidden = !empty;
  by("bring-back").hidden = !conversation.canBringBack;
  /** @type {HTMLButtonElement} */ (by("new-chat")).disabled = empty;
}

by("new-chat").addEventListener("click", () => {
  conversation.startNew();
  composer.focus();
});

by("bring-back").addEventListener("click", () => {
  conversation.bringBack();
  composer.focus();
});

by("ideas").addEventListener("click", (event) => {
  const button = /** @type {HTMLElement} */ (event.target).closest("button");
  if (!button) return;
  conversation.send(button.textContent ?? "");
  composer.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing) conversation.stop();
});

log.showChat();
refresh();
void connection.connect();
if (matchMedia("(hover: hover)").matches) composer.focus();
