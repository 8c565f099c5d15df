/**
 * A story, drawn and in sentences: what happened to a connection, a group, a request. The exchanges
 * that it names lead to themselves.
 */

import { button, element } from "./dom.js";
import { picture } from "./picture.js";

/** It begins where a word does, so that each word of a long text is looked at once. */
const NAMES = /((?<![\w.-])[\w.-]*#\d+)/;

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} place
 */
export function showStory(store, place) {
  const show = () => {
    place.hidden = store.story === null;
    if (!store.story) return;
    const { done, sentences = [], pictures = [] } = store.story;
    const lines = sentences.map((text) => element("p", {}, ...parts(store, text)));
    const none = done && !lines.length ? [element("p", {}, "nothing is recorded of it")] : [];
    const wrong = store.errors.story;
    const waits = wrong ? element("p", { class: "wrong" }, wrong.message) : element("p", {}, "…");
    place.replaceChildren(
      element("h2", {}, `why ${store.chosen.story}`, button("×", () => store.tell(""), "close")),
      ...pictures.map(picture),
      ...(done ? lines : [waits]),
      ...none,
    );
  };
  store.addEventListener("story", show);
}

/**
 * The parts of a text, in which the names of exchanges lead to them.
 * @param {import("./store.js").Store} store
 * @param {string} text
 * @param {string} [recording] whose exchanges it names, where that is one of several
 */
export function parts(store, text, recording = "") {
  const parts = text.split(NAMES); // each second one is a name
  const name = (/** @type {string} */ part) => (part.startsWith("#") ? recording : "") + part;
  return parts.map((part, n) => (n % 2 ? button(part, () => store.open(name(part))) : part));
}
