import { shortened } from "./shortened.js";

/**
 * A file that goes along with a question. Its text is there once the file is opened.
 * @param {import("../model/chat.js").Attachment} file
 * @param {string} label
 */
export function fileView({ text }, label) {
  const fold = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = label;
  summary.dir = "auto";
  const shown = document.createElement("pre");
  shown.dir = "auto";
  fold.append(summary, shown);
  fold.addEventListener("toggle", () => (shown.textContent = fold.open ? shortened(text) : ""));
  return fold;
}
