/**
 * A story in sentences: what happened to a connection, a group, a request. The exchanges that it
 * names lead to themselves.
 */

import { element } from "./dom.js";
import { button } from "./exchange.js";

const NAMES = /([\w.-]*#\d+)/;

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} place
 */
export function showStory(store, place) {
  const show = () => {
    place.hidden = store.story === null;
    if (!store.story) return;
    const { done, sentences = [] } = store.story;
    const lines = sentences.map((text) => element("p", {}, ...parts(store, text)));
    const none = done && !lines.length ? [element("p", {}, "nothing is recorded of it")] : [];
    place.replaceChildren(
      element("h2", {}, `why ${store.chosen.story}`, button("×", () => store.tell(""), "close")),
      ...(done ? lines : [element("p", {}, "…")]),
      ...none,
    );
  };
  store.addEventListener("story", show);
}

/**
 * @param {import("./store.js").Store} store
 * @param {string} text
 */
function parts(store, text) {
  return text
    .split(NAMES)
    .map((part) => (NAMES.test(part) ? button(part, () => store.open(part)) : part));
}
