"""The live page: one self-contained HTML document that polls the status of the run and draws it.

Decides what a person sees in a browser. It loads nothing from anywhere else and builds text nodes only, so nothing that
a learner says can become markup, and the browser is told to hold it to that (``PAGE_HEADERS``). Where a syncer asks for
a token it asks the person, keeps the token as long as the tab is open, and shows it in a header: never in an address,
which is written down in many places.
"""

from __future__ import annotations

import base64
import hashlib

_STYLE = """
  :root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
  body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 2rem 0 .4rem; }
  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
  th, td { text-align: right; padding: .15rem .6rem; border-bottom: 1px solid #8884; }
  th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
  svg { width: 100%; height: 12rem; border: 1px solid #8884; }
  polyline { fill: none; stroke: #2878d0; stroke-width: 2; vector-effect: non-scaling-stroke; }
  .quiet { opacity: .7; }
"""

_SCRIPT = """
const at = id => document.getElementById(id);
const number = x => x === null ? "–" : Number(x).toLocaleString("en", {maximumSignificantDigits: 4});
const rate = x => {
  const [factor, prefix] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([f]) => x >= 0.9995 * f) ?? [1, ""];
  return `${(x / factor).toPrecision(3) * 1} ${prefix}B/s`;
};
const seconds = ns => (ns / 1e9).toFixed(1) + " s";
const percent = x => x === null ? "–" : (100 * x).toFixed(1) + " %";

function fill(table, head, rows) {
  table.replaceChildren(...[head, ...rows].map((cells, i) => {
    const row = document.createElement("tr");
    row.replaceChildren(...cells.map(text => {
      const cell = document.createElement(i ? "td" : "th");
      cell.textContent = text;
      return cell;
    }));
    return row;
  }));
}

function draw(evaluations) {
  const losses = evaluations.map(e => e.loss), clocks = evaluations.map(e => e.clock);
  if (losses.length < 2) return;
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const [first, last] = [clocks[0], clocks[clocks.length - 1]];
  const points = evaluations.map(e =>
    [10 + 580 * (e.clock - first) / Math.max(1, last - first),
     150 - 140 * (e.loss - low) / Math.max(1e-9, high - low)]);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.map(p => p.join(",")).join(" "));
  at("curve").replaceChildren(line);
  at("loss").textContent =
    `${number(losses[0])} at step ${first}, ${number(losses[losses.length - 1])} at step ${last}, nats per token`;
}

function show(s) {
  const live = s.learners.filter(l => l.state === "live").length;
  at("title").textContent = `unlockstep: run ${s.run}`;
  const end = s.steps_max ? ` of ${number(s.steps_max)}` : "";
  at("summary").textContent = `${s.state}; clock ${number(s.clock)}${end}; ` +
    `${live} of ${s.learners.length} learners live; ${number(s.rounds_committed)} rounds committed; ` +
    `participation ${percent(s.participation)}; downtime ${seconds(s.downtime_ns)}`;
  const columns = ["learner", "state", "clock", "steps", "tokens/s", "loss", "last round", "merged", "upload", "heard"];
  fill(at("learners"), columns,
    s.learners.map(l => [`${l.learner}.${l.incarnation}`, l.state, number(l.clock), number(l.steps),
      l.step_ns ? number(l.tokens_per_step / l.step_ns * 1e9) : "–", number(l.loss), number(l.last_round),
      number(l.rounds_merged), l.codec + (l.upload_bytes_per_s ? ` ${rate(l.upload_bytes_per_s)}` : ""),
      seconds(l.silent_ns) + " ago"]));
  const closed = s.round_closed;
  fill(at("rounds"), ["round", "why it is open, or has closed", "fragment", "in", "asked"], [
    ...s.rounds.map(r => [r.round, r.sentence, r.fragment, r.contributions.length, r.asked.length]),
    ...(closed ? [[closed.round, closed.sentence, closed.fragment, closed.participants.length, "–"]] : [])]);
  const {trained, refused, ...fates} = s.ledger;
  fill(at("tokens"), ["fate", "", "tokens"], [
    ["trained", "", number(trained)],
    ...Object.entries(fates).map(([fate, n]) => [fate.replace("_", " "), "", number(n)]),
    ...Object.entries(refused).map(([reason, n]) => ["refused", reason.replaceAll("_", " "), number(n)])]);
  draw(s.evaluations.filter(e => e.loss !== null));
}

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const answer = await fetch(path, {headers: token ? {Authorization: "Bearer " + token} : {}, cache: "no-store"});
  if (answer.status === 401) {
    sessionStorage.removeItem("token");
    at("door").hidden = false;
    at("summary").textContent = token ? "the syncer does not accept this token" : "the syncer asks for a token";
    throw null;
  }
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer.json();
}

async function poll() {
  try {
    const [run] = await ask("v1/runs");
    show(await ask("v1/runs/" + encodeURIComponent(run)));
  } catch (error) {
    if (error === null) return;  // Until there is a token.
    at("summary").textContent = "the syncer does not answer; the last state is shown";
  }
  setTimeout(poll, 1000);
}

at("door").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value.trim());
  at("token").value = "";
  at("door").hidden = true;
  poll();
});
poll();
"""

PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>unlockstep</title>
<style>{_STYLE}</style>
<h1 id="title">unlockstep</h1>
<p id="summary" class="quiet">waiting for the syncer</p>
<form id="door" hidden>
  <label>Token <input id="token" type="password" autocomplete="off" required></label> <button>Show the run</button>
</form>
<h2>Learners</h2><table id="learners"></table>
<h2>Rounds: in progress, and the last one</h2><table id="rounds"></table>
<h2>Validation loss of the global model</h2>
<svg id="curve" viewBox="0 0 600 160" preserveAspectRatio="none"></svg>
<p id="loss" class="quiet"></p>
<h2>Tokens, by what became of them</h2><table id="tokens"></table>
<script>{_SCRIPT}</script>
</html>
"""


def _only(text: str) -> str:
    """This text and no other, for a browser."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


PAGE_HEADERS = {
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'none'",
            f"script-src {_only(_SCRIPT)}",
            f"style-src {_only(_STYLE)}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    ),
    "Cache-Control": "no-cache",
}
"""With which the page is sent: nothing but its own script runs, and it speaks to nobody but its syncer."""
