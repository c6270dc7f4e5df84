/** The keys of the page, and the dialog that lists them. */

/**
 * @typedef {object} Shortcut
 * @property {string} key as `KeyboardEvent.key`, in small letters
 * @property {boolean} [command] with Ctrl, or Command on a Mac
 * @property {boolean} [shift]
 * @property {boolean} [steps] again and again while it is held
 * @property {string} words
 * @property {() => void} run
 */

const IS_MAC = navigator.platform.startsWith("Mac");

/**
 * @param {Shortcut[]} shortcuts
 * @param {{dialog: HTMLDialogElement, list: HTMLElement, button: HTMLElement}} elements
 */
export function listen(shortcuts, { dialog, list, button }) {
  for (const shortcut of shortcuts) {
    const term = document.createElement("dt");
    const key = document.createElement("kbd");
    const words = document.createElement("dd");
    key.textContent = label(shortcut);
    words.textContent = shortcut.words;
    term.append(key);
    list.append(term, words);
  }
  button.addEventListener("click", () => dialog.showModal());
  // A key that is held neither switches to and fro nor writes where it has brought the focus.
  let held = "";
  document.addEventListener("keyup", () => (held = ""));
  document.addEventListener("keydown", (event) => {
    if (event.repeat && held && event.code === held) return event.preventDefault();
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    const command = IS_MAC ? event.metaKey : event.ctrlKey;
    const found = shortcuts.find(
      (one) =>
        one.key === event.key.toLowerCase() &&
        (one.command ?? false) === command &&
        (isSign(one.key) || (one.shift ?? false) === event.shiftKey) &&
        !event.altKey,
    );
    if (!found) return;
    if (!found.command && found.key !== "escape" && isWriting(event.target)) return;
    event.preventDefault();
    if (event.repeat && !found.steps) return; // it was pressed for something else
    held = found.steps ? "" : event.code;
    found.run();
  });
}

/**
 * Some keyboards make a sign with Shift, others the same one without.
 * @param {string} key
 */
function isSign(key) {
  return /^[^a-z]$/.test(key);
}

/** @param {EventTarget|null} target */
function isWriting(target) {
  return target instanceof HTMLElement && target.matches("input, textarea, select");
}

/** @param {Shortcut} shortcut */
function label({ key, command, shift }) {
  const parts = [];
  if (command) parts.push(IS_MAC ? "⌘" : "Ctrl");
  if (shift) parts.push("Shift");
  parts.push(key === "escape" ? "Esc" : key.length === 1 ? key.toUpperCase() : key);
  return parts.join("+");
}
