// A live page looks for news while somebody looks at it, and says so when nobody answers.
import { el } from "./dom.js";
import { moment } from "./format.js";
import { load, state } from "./state.js";

const EVERY = 10_000; // milliseconds
const SLOWEST = 120_000;
const PATIENCE = 60_000; // a store on a file system that hangs says nothing, for hours

export function follow() {
  if (document.body.dataset.live !== "true") return;
  const notice = el("p", { class: "warning", role: "status", hidden: true });
  const list = el("a", { href: "../../" }, "All experiments");
  const edit = document.body.dataset.editable === "true" ? [" · ", el("a", { href: "edit" }, "Edit notes and labels")] : [];
  document.querySelector("#page").prepend(el("nav", { class: "no-print" }, list, ...edit), notice);
  let wait = EVERY;
  let etag = null;

  async function look() {
    const asking = new AbortController();
    const timer = setTimeout(() => asking.abort(new Error("no answer for a minute")), PATIENCE);
    try {
      const answer = await fetch(`snapshot.json${location.search}`, { headers: etag ? { "If-None-Match": etag } : {}, cache: "no-store", signal: asking.signal });
      if (!answer.ok && answer.status !== 304) throw new Error(`status ${answer.status}`);
      if (answer.status !== 304) load(await answer.json());
      etag = answer.headers.get("ETag");
      wait = EVERY;
      notice.hidden = true;
    } catch (error) {
      wait = Math.min(2 * wait, SLOWEST);
      notice.hidden = false;
      notice.textContent = `No news from the server (${error.message}): this is as of ${moment(state.taken)}.`;
    }
    clearTimeout(timer);
    plan();
  }
  function plan() {
    setTimeout(() => (document.hidden ? plan() : look()), wait);
  }
  plan();
}
