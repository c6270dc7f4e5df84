// Shows /openapi.json and /asyncapi.json. Every word of them is set as text, never as markup.

/** @typedef {any} Description a part of a description, as its JSON has it */
/** @typedef {(string|Node)[]} Nodes */

const main = by("main");
const contents = by("contents");

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
function by(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/**
 * An element with attributes and children; texts become text nodes.
 * @param {string} name
 * @param {Record<string, string>} [attributes]
 * @param {Nodes} children
 */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const code = (/** @type {string} */ text) => element("code", {}, text);
const lastPart = (/** @type {string} */ reference) => reference.slice(reference.lastIndexOf("/") + 1);

/**
 * What a schema allows, in a few words; other schemas are links.
 * @param {Description} schema
 * @param {string} documentName
 * @returns {Nodes}
 */
function words(schema, documentName) {
  if (schema.$ref) {
    const name = lastPart(schema.$ref);
    const target = `#${documentName}-${name}`;
    return [element("a", { href: target }, name.slice(name.lastIndexOf(".") + 1))];
  }
  if ("const" in schema) return [code(JSON.stringify(schema.const))];
  if (schema.enum) return separated(schema.enum.map((/** @type {unknown} */ one) => [code(JSON.stringify(one))]));
  const some = schema.anyOf ?? schema.oneOf;
  if (some) {
    const known = some.filter((/** @type {Description} */ one) => one.type !== "null");
    return separated(known.map((/** @type {Description} */ one) => words(one, documentName)));
  }
  if (schema.type === "array") {
    return ["list of (", ...words(schema.items ?? {}, documentName), ")", limits(schema)];
  }
  if (schema.type === "object" && schema.properties) {
    const names = Object.keys(schema.properties);
    return ["object with ", ...separated(names.map((name) => [code(name)]), ", ")];
  }
  return [(schema.type ?? "anything") + limits(schema)];
}

/**
 * @param {Nodes[]} lists
 * @param {string} [between]
 * @returns {Nodes}
 */
function separated(lists, between = " or ") {
  return lists.flatMap((list, index) => (index ? [between, ...list] : list));
}

const LIMITS = [
  ["minimum", "at least"],
  ["maximum", "at most"],
  ["minLength", "characters, at least"],
  ["maxLength", "characters, at most"],
  ["minItems", "items, at least"],
  ["maxItems", "items, at most"],
  ["maxProperties", "names, at most"],
];

/** @param {Description} schema */
function limits(schema) {
  const said = LIMITS.filter(([key]) => key in schema).map(([key, word]) => `${word} ${schema[key]}`);
  return said.length ? `, ${said.join(", ")}` : "";
}

/**
 * The fields of an object as a table.
 * @param {Description} schema
 * @param {string} documentName
 */
function fields(schema, documentName) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(/** @type {Description} */ (schema.properties ?? {})).map(([name, kind]) => {
    const byDefault = "default" in kind && kind.default !== null;
    const note = required.has(name)
      ? "required"
      : byDefault
        ? `by default ${JSON.stringify(kind.default)}`
        : "";
    return element(
      "tr",
      {},
      element("td", {}, code(name)),
      element("td", {}, ...words(kind, documentName)),
      element("td", {}, note),
    );
  });
  const head = ["Field", "What it is", ""].map((title) => element("th", {}, title));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)));
  table.append(element("tbody", {}, ...rows));
  return element("div", { class: "wide" }, table);
}

/**
 * @param {string} title
 * @param {string} id
 * @param {Nodes} children
 */
function section(title, id, ...children) {
  list.append(element("li", {}, element("a", { href: `#${id}` }, title)));
  main.append(element("section", {}, element("h2", { id }, title), ...children));
}

/**
 * @param {string} method
 * @param {string} path
 * @param {Description} described
 * @param {Description} shared schemas by name
 */
function operation(method, path, described, shared) {
  const summary = element(
    "summary",
    {},
    element("span", { class: "method" }, method.toUpperCase()),
    code(path),
    element("span", { class: "what" }, ` ${described.summary}`),
  );
  const box = element("details", { id: described.operationId }, summary);
  box.append(element("p", {}, described.security ? "Needs a key, if there are any." : "Needs no key."));
  for (const parameter of described.parameters ?? []) {
    const kind = words(parameter.schema, "http");
    box.append(element("p", {}, `In the ${parameter.in}: `, code(parameter.name), ", ", ...kind));
  }
  const body = described.requestBody?.content["application/json"].schema;
  if (body) {
    box.append(element("p", {}, "The body is ", ...words(body, "http"), ":"));
    box.append(fields(body.$ref ? shared[lastPart(body.$ref)] : body, "http"));
  }
  const answers = Object.entries(/** @type {Description} */ (described.responses)).map(([status, answer]) => {
    const kinds = Object.entries(answer.content ?? {}).map(([kind, { schema, itemSchema }]) => [
      `${kind}: `,
      ...(itemSchema ? ["events of ", ...words(itemSchema, "http")] : words(schema, "http")),
    ]);
    return element("li", {}, code(status), ` ${answer.description}. `, ...separated(kinds, "; "));
  });
  box.append(element("p", {}, "Answers:"), element("ul", {}, ...answers));
  return box;
}

/** @param {Description} description */
function showHttp(description) {
  by("about").textContent = description.info.description;
  const shared = description.components.schemas;
  for (const { name } of description.tags) {
    const boxes = [];
    for (const [path, methods] of Object.entries(/** @type {Description} */ (description.paths))) {
      for (const [method, described] of Object.entries(/** @type {Description} */ (methods))) {
        if (described.tags.includes(name)) boxes.push(operation(method, path, described, shared));
      }
    }
    section(name, `tag-${name.replaceAll(/\W+/g, "-").toLowerCase()}`, ...boxes);
  }
  showSchemas("What bodies are made of", "http", shared);
}

/** @param {Description} description */
function showSocket(description) {
  const { messages, schemas } = description.components;
  const [channel] = Object.values(/** @type {Description} */ (description.channels));
  /** @type {Nodes} */
  const parts = [element("p", {}, description.info.description, " Path: ", code(channel.address))];
  for (const exchange of Object.values(/** @type {Description} */ (description.operations))) {
    parts.push(element("h3", {}, exchange.summary));
    for (const reference of exchange.messages) {
      const message = messages[lastPart(reference.$ref)];
      const payload = message.payload;
      const schema = payload.$ref ? schemas[lastPart(payload.$ref)] : payload;
      const summary = element("summary", {}, code(message.name));
      summary.append(element("span", { class: "what" }, ` ${message.summary}`));
      parts.push(element("details", {}, summary, fields(schema, "socket")));
    }
  }
  section(description.info.title, "socket", ...parts);
  showSchemas("What messages are made of", "socket", schemas);
}

/**
 * @param {string} title
 * @param {string} documentName
 * @param {Description} schemas by name
 */
function showSchemas(title, documentName, schemas) {
  const boxes = Object.entries(/** @type {Description} */ (schemas)).map(([name, schema]) => {
    const summary = element("summary", {}, code(name.slice(name.lastIndexOf(".") + 1)));
    const box = element("details", { id: `${documentName}-${name}` }, summary);
    if (schema.description) box.append(element("p", { class: "note" }, schema.description));
    box.append(schema.properties ? fields(schema, documentName) : element("p", {}, ...words(schema, documentName)));
    return box;
  });
  section(title, `${documentName}-schemas`, ...boxes);
}

/** A link to something inside a closed box opens it. */
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
}

/** @param {string} name */
async function read(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name} could not be read (${response.status})`);
  return response.json();
}

const list = element("ul");
contents.append(list);
try {
  const [http, socket] = await Promise.all([read("./openapi.json"), read("./asyncapi.json")]);
  showHttp(http);
  showSocket(socket);
  addEventListener("hashchange", openTarget);
  openTarget();
} catch (error) {
  main.append(element("p", { role: "alert" }, `The description is not there: ${/** @type {Error} */ (error).message}`));
} finally {
  main.removeAttribute("aria-busy");
}

export {};
