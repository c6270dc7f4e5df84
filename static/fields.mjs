/**
 * What `docs/api.md` says of the fields of requests: rows of the tables between
 * `<!-- fields of TYPE -->` and `<!-- end of fields -->`, as Markdown.
 */

/** How rows point to the same field in another table; a description is read by itself. */
const AS_IN_CHAT = /^(?:(beyond \w+), )?as in Chat Completions/;
const AS_ABOVE = /^as above/;

/** @typedef {Record<string, Record<string, string>>} Texts by type and field, in the order of the rows */

/**
 * @param {import("markdown-it").Token[]} tokens
 * @returns {Texts}
 */
export function fieldsOf(tokens) {
  /** @type {Texts} */
  const said = {};
  /** @type {Texts} */
  const described = {};
  let type;
  let cells = [];
  let heading = [];
  for (const [index, token] of tokens.entries()) {
    if (token.type === "html_block") {
      type = /^<!-- fields of (\w+) -->/.exec(token.content)?.[1];
      if (type) [said[type], described[type]] = [{}, {}];
    }
    if (!type) continue;
    if (token.type === "tr_open") cells = [];
    if (token.type === "th_open" || token.type === "td_open") cells.push(tokens[index + 1].content);
    if (token.type === "thead_close") heading = cells;
    if (token.type === "tr_close" && cells !== heading && tokens[index - 1].type === "td_close") {
      const name = cells[0].replaceAll("`", "");
      said[type][name] = resolved(said, name, cells[1]);
      described[type][name] = description(heading, said[type][name]);
    }
  }
  return described;
}

/**
 * @param {Texts} said so far
 * @param {string} name of the field
 * @param {string} text
 */
function resolved(said, name, text) {
  const above = Object.keys(said).at(-2); // the last one is the type of this row
  for (const [words, type] of /** @type {const} */ ([[AS_IN_CHAT, "ChatRequest"], [AS_ABOVE, above]])) {
    const other = said[type]?.[name];
    const found = words.exec(text);
    if (!found || other === undefined) continue;
    const [, by = "", what] = /^(?:beyond \w+([^:]*): )?(.*)$/s.exec(other) ?? [];
    const rest = text.slice(found[0].length);
    return (found[1] ? `${found[1]}${by}: ${what}` : what) + rest;
  }
  return text;
}

/**
 * @param {string[]} heading of the table, which says what becomes of its fields
 * @param {string} said of one of them
 */
function description([group, about], said) {
  const text = said.replace(/, see below$/, "").replaceAll("](#", "](docs#");
  if (about === "Values") return text.charAt(0).toUpperCase() + text.slice(1);
  if (about === "Why") return `${group}: ${text}`;
  if (about === "Unless it is") return `${group} unless it is ${text}`;
  throw new Error(`what a table says of fields is unknown: ${about}`);
}
