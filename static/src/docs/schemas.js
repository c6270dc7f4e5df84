// JSON schemas in words and tables.

import { code, element, prose, separated } from "./elements.js";

/** @typedef {any} Description a part of a description, as its JSON has it */
/** @typedef {import("./elements.js").Nodes} Nodes */

export const lastPart = (/** @type {string} */ reference) => reference.slice(reference.lastIndexOf("/") + 1);
export const plainName = (/** @type {string} */ name) => name.slice(name.lastIndexOf(".") + 1);

/** By its type, what the size of a value is called in a schema, and to a reader. */
const SIZES = [
  { low: "minimum", high: "maximum", unit: "" },
  { low: "minLength", high: "maxLength", unit: "character" },
  { low: "minItems", high: "maxItems", unit: "item" },
  { low: "minProperties", high: "maxProperties", unit: "name" },
];

/**
 * What a schema allows, in a few words; other schemas are links.
 * @param {Description} schema
 * @param {string} documentName
 * @returns {Nodes}
 */
export function words(schema, documentName) {
  if (schema.$ref) {
    const name = lastPart(schema.$ref);
    return [element("a", { href: `#${documentName}-${name}` }, plainName(name))];
  }
  if ("const" in schema) return [code(JSON.stringify(schema.const))];
  if (schema.enum) return separated(schema.enum.map((/** @type {unknown} */ one) => [code(JSON.stringify(one))]));
  const some = alternatives(schema);
  if (some) return separated(some.map((one) => words(one, documentName)));
  if (schema.type === "array") {
    const items = schema.items ?? {};
    const inner = words(items, documentName);
    const many = (alternatives(items)?.length ?? items.enum?.length ?? 1) > 1;
    return ["list of ", ...(many ? ["(", ...inner, ")"] : inner), limits(schema)];
  }
  if (schema.type === "object" && schema.properties) {
    const names = Object.keys(schema.properties);
    return ["object with ", ...separated(names.map((name) => [code(name)]), ", ")];
  }
  return [(schema.type ?? "any JSON") + limits(schema)];
}

/**
 * The schemas of which one holds; null is left out, since it is the same as no value.
 * @param {Description} schema
 * @returns {Description[] | undefined}
 */
function alternatives(schema) {
  return (schema.anyOf ?? schema.oneOf)?.filter((/** @type {Description} */ one) => one.type !== "null");
}

/** @param {Description} schema */
function limits(schema) {
  const said = SIZES.flatMap(({ low, high, unit }) => {
    const range = between(schema[low], schema[high]);
    if (!range) return [];
    return unit ? [`${range} ${unit}${/\b1$/.test(range) ? "" : "s"}`] : [range];
  });
  return said.length ? ` (${said.join(", ")})` : "";
}

/**
 * @param {number | undefined} low
 * @param {number | undefined} high
 */
function between(low, high) {
  const shown = (/** @type {number} */ number) => number.toLocaleString("en");
  if (low !== undefined && high !== undefined) return low === high ? shown(low) : `${shown(low)} to ${shown(high)}`;
  if (low !== undefined) return `at least ${shown(low)}`;
  return high === undefined ? "" : `at most ${shown(high)}`;
}

/**
 * The fields of an object as a table.
 * @param {Description} schema
 * @param {string} documentName
 */
export function fields(schema, documentName) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(/** @type {Description} */ (schema.properties ?? {})).map(([name, kind]) => {
    const type = element("span", { class: "type" }, ...words(kind, documentName));
    if (required.has(name)) type.append(", required");
    else if ("default" in kind && kind.default !== null) type.append(", by default ", code(JSON.stringify(kind.default)));
    const what = element("td", { role: "cell" }, type);
    if (kind.description) what.append(element("p", {}, ...prose(kind.description)));
    return element("tr", { role: "row" }, element("td", { role: "cell", class: "name" }, code(name)), what);
  });
  const titles = ["Field", "What it is"].map((title) => element("th", { role: "columnheader" }, title));
  const head = element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...titles));
  const body = element("tbody", { role: "rowgroup" }, ...rows);
  return element("div", { class: "wide" }, element("table", { class: "pairs", role: "table" }, head, body));
}
