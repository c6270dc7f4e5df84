/**
 * What the page says: states, ends and figures in words.
 */

/**
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("../model/chat.js").Stats} Stats
 * @typedef {import("../wire/connection.js").Phase} Phase
 * @typedef {import("../wire/run.js").Run} Run
 */

/** @type {Record<string, string>} by the error's code on the wire */
const FAULTS = {
  batch_failed: "The server met a fault while it wrote this answer. What you wrote is kept.",
  context_length_exceeded: "This chat, with its files, is longer than the model can read.",
  payload_too_large: "This message is larger than the server takes.",
  server_busy: "The server is full at the moment. Please try again shortly.",
  server_loading: "The model is still being loaded. Please try again shortly.",
  server_stopping: "The server is shutting down.",
};

/** Read out a finished answer whole up to this length; beyond it, only say that it is there. */
const SPOKEN_CHARACTERS = 500;

/**
 * @param {Message} message alive
 * @param {Run|null} run
 */
export function waitWords({ status }, run) {
  if (run?.stopping) return "Stopping";
  if (run?.away) return "The connection was lost; the answer is being looked for";
  const prefill = run?.prefill;
  if (status === "prefill" && prefill && prefill.processed < prefill.total) {
    return `Reading: ${prefill.processed} of ${prefill.total} tokens`;
  }
  return "Waiting for the answer";
}

/**
 * @param {Message} message
 * @returns {{headline: string, detail: string}|null}
 */
export function faultWords({ status, fault }) {
  if (status !== "failed") return null;
  const said = fault?.message ?? "";
  const code = fault?.code ?? "";
  const known = Object.hasOwn(FAULTS, code) ? FAULTS[code] : undefined;
  return { headline: known ?? "The server could not answer.", detail: said };
}

/** @param {Message} message */
export function endWords(message) {
  switch (message.status) {
    case "cut":
      return "Reached the length limit";
    case "stopped":
      return "Stopped";
    case "interrupted":
      return "Interrupted";
    case "done":
      return message.text === "" && message.calls.length === 0 ? "The model had nothing to say" : "";
    default:
      return "";
  }
}

/** @param {Stats} stats of a finished answer */
export function statsWords(stats) {
  const parts = [];
  if (stats.tokensPerSecond !== null) parts.push(`${figure(stats.tokensPerSecond)} tokens/s`);
  if (stats.outputTokens) parts.push(counted(stats.outputTokens, "token"));
  if (stats.firstTokenSeconds !== null) {
    parts.push(`first in ${stats.firstTokenSeconds.toFixed(2)} s`);
  }
  if (stats.batchSize) {
    const mean = figure(stats.batchSize);
    parts.push(mean === "1.0" ? "alone in its batches" : `${mean} per batch`);
  }
  if (stats.cachedTokens && stats.promptTokens) {
    const [cached, all] = [stats.cachedTokens, stats.promptTokens].map(whole);
    parts.push(`${cached} of ${all} cached`);
  }
  return parts.join(" · ");
}

/** @param {Message} answer that has ended; for screen readers */
export function spokenWords(answer) {
  const fault = faultWords(answer);
  if (fault) return fault.headline;
  const short = answer.text.length <= SPOKEN_CHARACTERS;
  return `${short ? answer.text : "The answer is finished."} ${endWords(answer)}`;
}

/** @param {Stats} stats */
export function statsTitle(stats) {
  const parts = [];
  if (stats.promptTokens) parts.push(`It read ${counted(stats.promptTokens, "token")}.`);
  if (stats.cachedTokens) {
    parts.push(`Of these it remembered ${whole(stats.cachedTokens)} from before.`);
  }
  if (stats.reasoningTokens) parts.push(`It thought ${counted(stats.reasoningTokens, "token")}.`);
  if (stats.batchSize) {
    parts.push(`Its batches served ${figure(stats.batchSize)} answers on average.`);
  }
  return parts.join(" ");
}

/**
 * @param {number|null} tokensPerSecond
 * @param {number} batchSize
 */
export function liveWords(tokensPerSecond, batchSize) {
  const parts = [];
  if (tokensPerSecond !== null) parts.push(`${figure(tokensPerSecond)} tokens/s`);
  if (batchSize > 0) parts.push(batchSize === 1 ? "alone in its batch" : `batch of ${batchSize}`);
  return parts.join(" · ");
}

/**
 * @param {number} count
 * @param {string} noun
 */
function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** @param {number} count */
function whole(count) {
  return count.toLocaleString("en");
}

/** @param {number} value */
function figure(value) {
  return value < 99.95 ? value.toFixed(1) : Math.round(value).toString();
}

/** @param {Phase} phase */
export function phaseLabel(phase) {
  switch (phase.name) {
    case "open":
      return "Connected";
    case "checking":
      return "Connecting";
    case "key":
      return "Key needed";
    default:
      return phase.why === "loading" ? "Loading" : "Offline";
  }
}

/** @param {Phase} phase the sentence above the composer; empty where nothing needs saying */
export function phaseWords(phase) {
  if (phase.name !== "waiting") return "";
  switch (phase.why) {
    case "loading":
      return "The model is still being loaded; it answers what you ask now as soon as it is ready.";
    case "lost":
      return "The connection was lost.";
    case "refused":
      return phase.message
        ? `The server refused the connection: ${phase.message}`
        : "The server refused the connection.";
    default:
      return "The server cannot be reached.";
  }
}

/**
 * @param {number} used tokens
 * @param {number} room tokens
 */
export function contextWords(used, room) {
  return `${whole(used)} of ${whole(room)} tokens of context`;
}

/**
 * @param {number} found chats in a file
 * @param {number} added those that were not here
 */
export function importWords(found, added) {
  const known = found - added;
  if (known > 0 && added === 0) return "All chats of this file are here already.";
  const came = `${added === 1 ? "1 chat" : `${added} chats`} came in`;
  return known === 0 ? `${came}.` : `${came}; ${known} ${known === 1 ? "was" : "were"} here already.`;
}
