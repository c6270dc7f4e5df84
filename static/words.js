/**
 * What the page says: states, ends and figures in words.
 */

/**
 * @typedef {import("./chat.js").Turn} Turn
 * @typedef {import("./chat.js").TurnStats} TurnStats
 * @typedef {import("./connection.js").Phase} Phase
 */

/** @type {Record<string, string>} by the error's code on the wire */
const FAULTS = {
  batch_failed: "The server met a fault while it wrote this answer. What you wrote is kept.",
  context_length_exceeded: "This chat has grown longer than the model can read.",
  payload_too_large: "This message is larger than the server takes.",
  server_busy: "The server is full at the moment. Please try again shortly.",
  server_loading: "The model is still being loaded. Please try again shortly.",
  server_stopping: "The server is shutting down.",
};

/**
 * @param {Turn} turn
 * @returns {{headline: string, detail: string}|null}
 */
export function faultWords(turn) {
  if (turn.status !== "failed") return null;
  const message = turn.fault?.message ?? "";
  const headline = FAULTS[turn.fault?.code ?? ""];
  if (headline) return { headline, detail: message };
  return { headline: "The server could not answer.", detail: message };
}

/** @param {Turn} turn */
export function endWords(turn) {
  switch (turn.status) {
    case "cut":
      return "Reached the length limit";
    case "stopped":
      return "Stopped";
    case "interrupted":
      return "Interrupted";
    case "done":
      return turn.answer === "" ? "The model had nothing to say" : "";
    default:
      return "";
  }
}

/** @param {TurnStats} stats of a finished answer */
export function statsWords(stats) {
  const parts = [];
  if (stats.tokensPerSecond !== null) parts.push(`${figure(stats.tokensPerSecond)} tokens/s`);
  if (stats.tokens) parts.push(`${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`);
  if (stats.batchSize) {
    const mean = figure(stats.batchSize);
    parts.push(mean === "1.0" ? "alone in its batches" : `${mean} to a batch`);
  }
  return parts.join(" · ");
}

/** @param {TurnStats} stats */
export function statsTitle(stats) {
  const parts = [];
  if (stats.firstTokenSeconds !== null) {
    parts.push(`First token after ${stats.firstTokenSeconds.toFixed(2)} s.`);
  }
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
      return "The model is still being loaded.";
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
