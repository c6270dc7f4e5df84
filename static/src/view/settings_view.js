/**
 * The settings of one chat, in a dialog that is made of a table. They are kept as they are changed,
 * and hold from the next answer on.
 */

/** @typedef {import("../model/chat.js").Settings} Settings */

/**
 * @typedef {object} Field
 * @property {keyof Settings} name
 * @property {string} label
 * @property {string} hint
 * @property {[number, number, number]} [range] least, most, step
 * @property {string[]} [choices]
 */

/** @type {Field[]} */
const FIELDS = [
  { name: "system", label: "Instructions", hint: "What the model is told before the first question of this chat." },
  {
    name: "temperature",
    label: "Temperature",
    hint: "0 takes the likeliest words, 1 draws as the model would. Asked again, 0 becomes 0.7, for other words.",
    range: [0, 2, 0.05],
  },
  {
    name: "topP",
    label: "Top p",
    hint: "Draws from the likeliest words that together have this share of the probability.",
    range: [0, 1, 0.01],
  },
  {
    name: "topK",
    label: "Top k",
    hint: "Draws from this many of the likeliest words.",
    range: [0, 1000, 1],
  },
  {
    name: "minP",
    label: "Min p",
    hint: "Leaves out words that have less than this share of the likeliest one's probability.",
    range: [0, 1, 0.01],
  },
  {
    name: "maxTokens",
    label: "Longest answer",
    hint: "In tokens, of about four letters each.",
    range: [1, 1_000_000, 1],
  },
  { name: "seed", label: "Seed", hint: "The same seed gives the same answer. Asked again, the next one is taken.", range: [0, 2 ** 53 - 1, 1] },
  {
    name: "effort",
    label: "Thinking",
    hint: "How much the model thinks before it answers, if it can.",
    choices: ["none", "low", "medium", "high"],
  },
  {
    name: "more",
    label: "Other fields",
    hint: "More of the request, as a JSON object: for instance tools, or a format of text.",
  },
];

export class SettingsView {
  #dialog;
  #form;
  /** @type {Map<keyof Settings, HTMLInputElement|HTMLTextAreaElement|HTMLSelectElement>} */
  #fields = new Map();
  /** The chat whose settings these are: another tab may remove it, and bring the reader elsewhere. */
  #chatId = "";
  #onChange;

  /**
   * @param {{dialog: HTMLDialogElement, form: HTMLElement}} elements
   * @param {(chatId: string, settings: Partial<Settings>) => void} onChange
   */
  constructor({ dialog, form }, onChange) {
    this.#dialog = dialog;
    this.#form = form;
    this.#onChange = onChange;
    for (const field of FIELDS) form.append(this.#row(field));
    const close = document.createElement("button");
    close.className = "strong";
    close.textContent = "Done";
    form.append(close);
    // A press beside it closes; a drag that only ends there selects words.
    let isBeside = false;
    dialog.addEventListener("pointerdown", (event) => {
      const { left, right, top, bottom } = dialog.getBoundingClientRect();
      const { clientX: x, clientY: y, target } = event;
      isBeside = target === dialog && !(left <= x && x <= right && top <= y && y <= bottom);
    });
    dialog.addEventListener("click", ({ target }) => {
      if (isBeside && target === dialog) dialog.close();
    });
  }

  /** @param {import("../model/chat.js").Chat} chat */
  open({ id, settings }) {
    this.#chatId = id;
    for (const [name, field] of this.#fields) field.value = `${settings[name] ?? ""}`;
    this.#dialog.showModal();
  }

  /** @param {Field} field */
  #row({ name, label, hint, range, choices }) {
    const row = document.createElement("div");
    row.className = "setting";
    const id = `setting-${name}`;
    const title = document.createElement("label");
    title.htmlFor = id;
    title.textContent = label;
    const words = document.createElement("p");
    words.className = "hint";
    words.id = `${id}-hint`;
    words.textContent = hint;
    const input = choices ? selection(choices) : range ? number(range) : area();
    input.id = id;
    input.setAttribute("aria-describedby", words.id);
    input.addEventListener("change", () => {
      if (name === "more") judgeJson(input);
      const value = range || choices ? valueOf(input, range) : textOf(input);
      if (value !== undefined) this.#onChange(this.#chatId, { [name]: value });
    });
    this.#fields.set(name, input);
    row.append(title, input, words);
    return row;
  }
}

/** @param {HTMLInputElement|HTMLTextAreaElement|HTMLSelectElement} input of a JSON object */
function judgeJson(input) {
  const isOne = input.value.trim() === "" || isObject(input.value);
  input.setCustomValidity(isOne ? "" : "This is not an object in JSON.");
}

/**
 * @param {HTMLInputElement|HTMLTextAreaElement|HTMLSelectElement} input
 * @returns {string|undefined} undefined where it is wrong
 */
function textOf(input) {
  return input.reportValidity() ? input.value : undefined;
}

/** @param {string} json */
function isObject(json) {
  try {
    const found = JSON.parse(json);
    return typeof found === "object" && found !== null && !Array.isArray(found);
  } catch {
    return false;
  }
}

/**
 * @param {HTMLInputElement|HTMLTextAreaElement|HTMLSelectElement} input
 * @param {[number, number, number]} [range]
 * @returns {number|string|null|undefined} null for the server's own; undefined where it is wrong
 */
function valueOf(input, range) {
  if (input.value === "") return null;
  if (!range) return input.value;
  return input.reportValidity() ? Number(input.value) : undefined;
}

/** @param {[number, number, number]} range */
function number([least, most, step]) {
  const input = document.createElement("input");
  input.type = "number";
  input.min = `${least}`;
  input.max = `${most}`;
  input.step = `${step}`;
  input.placeholder = "the server's own";
  return input;
}

/** @param {string[]} choices */
function selection(choices) {
  const select = document.createElement("select");
  select.append(new Option("the model's own", ""), ...choices.map((choice) => new Option(choice)));
  return select;
}

function area() {
  const text = document.createElement("textarea");
  text.rows = 3;
  text.dir = "auto";
  return text;
}
