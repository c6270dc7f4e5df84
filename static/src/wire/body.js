/**
 * What is sent for an answer: the path of messages before it, as a chain or whole.
 */

import { isAlive } from "../model/chat.js";

/**
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("../model/chat.js").Settings} Settings
 */

/**
 * @param {Settings} settings
 * @param {Message[]} path the messages before the answer, the last of them the question; or, for
 *   an answer to be continued, with that answer at the end
 * @param {boolean} whole send the conversation itself, not the name that the server has for it
 * @returns {object} a `response.create`
 */
export function bodyOf(settings, path, whole) {
  const chained = whole ? -1 : path.findLastIndex(isKnown);
  const chain = path[chained]?.responseId;
  const continues = path.at(-1)?.role === "assistant";
  const items = path.slice(continues ? 0 : chained + 1).filter((message) => !isUnanswered(message));
  return {
    ...fieldsIn(settings.more),
    store: true,
    background: true, // it is written on when the socket is lost
    return_progress: true,
    ...(settings.system && { instructions: settings.system }),
    ...(settings.temperature !== null && { temperature: settings.temperature }),
    ...(settings.topP !== null && { top_p: settings.topP }),
    ...(settings.topK !== null && { top_k: settings.topK }),
    ...(settings.minP !== null && { min_p: settings.minP }),
    ...(settings.maxTokens !== null && { max_output_tokens: settings.maxTokens }),
    ...(settings.seed !== null && { seed: settings.seed }),
    ...(settings.effort !== null && { reasoning: { effort: settings.effort } }),
    ...(chain && !continues && { previous_response_id: chain }),
    ...(continues && { continue_final_message: true }),
    input: items.flatMap(itemsOf),
  };
}

/**
 * @param {string} [json] of chats that are older than this setting there is none
 * @returns {object} nothing where it is no object
 */
export function fieldsIn(json) {
  try {
    const found = JSON.parse(json || "{}");
    return typeof found === "object" && !Array.isArray(found) ? { ...found } : {};
  } catch {
    return {};
  }
}

/** @param {Message} message an answer that the server has as it is here */
function isKnown(message) {
  return message.role === "assistant" && message.responseId !== null && message.status === "done";
}

/** @param {Message} message an answer that is none: the server would be told of nothing said */
function isUnanswered(message) {
  if (message.role === "user") return false;
  return isAlive(message) || (message.text === "" && message.calls.length === 0);
}

/**
 * @param {Message} message
 * @returns {object[]}
 */
function itemsOf(message) {
  const { id, role, text, calls, status } = message;
  if (role === "user") return [{ type: "message", role, content: asked(message) }];
  const called = calls.map(({ name, arguments: given }, number) => ({
    type: "function_call",
    call_id: `call_${id}_${number}`,
    name,
    arguments: given,
    status: status === "done" || number < calls.length - 1 ? "completed" : "incomplete",
  }));
  return text || !calls.length ? [{ type: "message", role, content: text }, ...called] : called;
}

/**
 * A question with its files, each in a fence that is longer than any in it.
 * @param {Message} message
 */
export function asked(message) {
  const files = message.attachments.map(({ name, text }) => {
    let longest = 2; // found in a loop: a call takes only so many arguments
    for (const [ticks] of text.matchAll(/`+/g)) longest = Math.max(longest, ticks.length);
    const fence = "`".repeat(longest + 1);
    return `${name}\n${fence}\n${text}\n${fence}`;
  });
  return [...files, message.text].filter((part) => part !== "").join("\n\n");
}
