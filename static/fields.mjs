/**
 * What `docs/api.md` says of the fields of requests: rows of the tables between
 * `<!-- fields of TYPE -->` and `<!-- end of fields -->`, as Markdown.
 */

/** Rows that point to the same field at another place; a description is read by itself. */
const AS_IN_CHAT = /^(?:(?<beyond>beyond \w+), )?as in Chat Completions$/;
const AS_ABOVE = /^as above(?<more>[,;].*)?$/;

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
 * @param {Texts} said so far, the field's own type at the end
 * @param {string} name of the field
 * @param {string} text
 */
function resolved(said, name, text) {
  const inChat = AS_IN_CHAT.exec(text);
  const above = AS_ABOVE.exec(text);
  if (!inChat && !above) return text;
  const types = inChat ? ["ChatRequest"] : Object.keys(said).slice(0, -1).reverse();
  const other = types.map((type) => said[type]?.[name]).find((found) => found !== undefined);
  if (other === undefined) return text;
  const [, by = "", what] = /^(?:beyond \w+([^:]*): )?(.*)$/s.exec(other) ?? [];
  const beyond = inChat?.groups?.beyond;
  return (beyond ? `${beyond}${by}: ` : "") + what + (above?.groups?.more ?? "");
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
