// Shows /openapi.json and /asyncapi.json behind the reference, which the page has from its build.

import { by, code, element, prose, separated } from "./elements.js";
import { fields, lastPart, plainName, words } from "./schemas.js";

/** @typedef {import("./schemas.js").Description} Description */
/** @typedef {import("./elements.js").Nodes} Nodes */

/**
 * @param {string} part of the page
 * @param {string} title
 * @param {string} id
 * @param {Nodes} children
 */
function section(part, title, id, ...children) {
  by(`${part}-contents`).append(element("li", {}, element("a", { href: `#${id}` }, title)));
  by(`${part}-part`).append(element("h3", { id }, title), ...children);
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
  box.append(element("p", {}, described.security ? "Needs an API key, if the server has any." : "Needs no API key."));
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
  by("http-part").append(element("p", {}, ...prose(description.info.description)));
  const shared = description.components.schemas;
  for (const { name } of description.tags) {
    const boxes = [];
    for (const [path, methods] of Object.entries(/** @type {Description} */ (description.paths))) {
      for (const [method, described] of Object.entries(/** @type {Description} */ (methods))) {
        if (described.tags.includes(name)) boxes.push(operation(method, path, described, shared));
      }
    }
    section("http", name, `tag-${name.replaceAll(/\W+/g, "-").toLowerCase()}`, ...boxes);
  }
  showSchemas("What bodies are made of", "http", shared);
}

/** @param {Description} description */
function showSocket(description) {
  const { messages, schemas } = description.components;
  const [channel] = Object.values(/** @type {Description} */ (description.channels));
  by("websocket-part").append(
    element("p", {}, ...prose(description.info.description), " Path: ", code(channel.address)),
  );
  for (const [name, exchange] of Object.entries(/** @type {Description} */ (description.operations))) {
    const boxes = exchange.messages.map((/** @type {Description} */ reference) => {
      const message = messages[lastPart(reference.$ref)];
      const payload = message.payload;
      const schema = payload.$ref ? schemas[lastPart(payload.$ref)] : payload;
      const what = element("span", { class: "what" }, " ", ...prose(message.summary));
      const summary = element("summary", {}, code(message.name), what);
      return element("details", { id: `message-${message.name}` }, summary, fields(schema, "websocket"));
    });
    section("websocket", exchange.summary, `websocket-${name}`, ...boxes);
  }
  showSchemas("What messages are made of", "websocket", schemas);
}

/**
 * @param {string} title
 * @param {string} part
 * @param {Description} schemas by name
 */
function showSchemas(title, part, schemas) {
  const boxes = Object.entries(/** @type {Description} */ (schemas)).map(([name, schema]) => {
    const box = element("details", { id: `${part}-${name}` }, element("summary", {}, code(plainName(name))));
    if (schema.description) box.append(element("p", { class: "note" }, ...prose(schema.description)));
    box.append(schema.properties ? fields(schema, part) : element("p", {}, ...words(schema, part)));
    return box;
  });
  section(part, title, `${part}-schemas`, ...boxes);
}

/** A link to a closed box opens it. */
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
  target?.scrollIntoView();
}

/**
 * Reads one description and shows it in its part of the page, or why it is not there.
 * @param {string} part
 * @param {string} name
 * @param {(description: Description) => void} show
 */
async function read(part, name, show) {
  try {
    const response = await fetch(name);
    if (!response.ok) throw new Error(`${name} could not be read (${response.status})`);
    show(await response.json());
  } catch (error) {
    const why = /** @type {Error} */ (error).message;
    by(`${part}-part`).append(element("p", { role: "alert" }, `The description is not there: ${why}`));
  } finally {
    by(`${part}-part`).removeAttribute("aria-busy");
  }
}

await Promise.all([
  read("http", "./openapi.json", showHttp),
  read("websocket", "./asyncapi.json", showSocket),
]);
addEventListener("hashchange", openTarget);
if (location.hash) openTarget();
