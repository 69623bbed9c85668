"""The live page: one self-contained HTML document that polls the status of the run and draws it.

Decides what a person sees in a browser. It loads nothing from anywhere else and builds text nodes only, so nothing that
a learner says can become markup.
"""

from __future__ import annotations

PAGE_HEADERS: dict[str, str] = {}
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>unlockstep</title>
<style>
  :root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
  body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 2rem 0 .4rem; }
  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
  th, td { text-align: right; padding: .15rem .6rem; border-bottom: 1px solid #8884; }
  th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
  svg { width: 100%; height: 12rem; border: 1px solid #8884; }
  .quiet { opacity: .7; }
</style>
<h1 id="title">unlockstep</h1>
<p id="summary" class="quiet">waiting for the syncer</p>
<h2>Learners</h2><table id="learners"></table>
<h2>Rounds: in progress, and the last one</h2><table id="rounds"></table>
<h2>Validation loss of the global model</h2>
<svg id="curve" viewBox="0 0 600 160" preserveAspectRatio="none"></svg>
<p id="loss" class="quiet"></p>
<h2>Tokens, by what became of them</h2><table id="tokens"></table>
<script>
const at = id => document.getElementById(id);
const number = x => x === null ? "–" : Number(x).toLocaleString("en", {maximumSignificantDigits: 4});
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
  line.setAttribute("style", "fill:none;stroke:#2878d0;stroke-width:2;vector-effect:non-scaling-stroke");
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
  fill(at("learners"), ["learner", "state", "clock", "steps", "tokens/s", "loss", "last round", "merged", "heard"],
    s.learners.map(l => [`${l.learner}.${l.incarnation}`, l.state, number(l.clock), number(l.steps),
      l.step_ns ? number(l.tokens_per_step / l.step_ns * 1e9) : "–", number(l.loss), number(l.last_round),
      number(l.rounds_merged), seconds(l.silent_ns) + " ago"]));
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

async function poll() {
  try {
    const [run] = await (await fetch("v1/runs")).json();
    show(await (await fetch("v1/runs/" + encodeURIComponent(run))).json());
  } catch (error) {
    at("summary").textContent = "the syncer does not answer; the last state is shown";
  }
  setTimeout(poll, 1000);
}
poll();
</script>
</html>
"""
