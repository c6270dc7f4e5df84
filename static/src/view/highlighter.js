/** The thread that colours code, with the languages that are asked about most. */

import highlight from "highlight.js/lib/common";

self.onmessage = ({ data: { text, language } }) => {
  const isKnown = highlight.getLanguage(language) !== undefined;
  const options = { language, ignoreIllegals: true };
  self.postMessage(isKnown ? highlight.highlight(text, options).value : null);
};
self.postMessage("ready");
