// How much of the result a hyperparameter alone explains: eta squared of ranks. Trials are grouped by
// its value (numbers with many values into groups of about equal size), and the measure is the part
// of the variance of the results' ranks that lies between the groups: 0 is nothing, 1 is all. Ranks
// make it the same on any scale of the metric. Groups always differ a little by chance: how much is
// found by dealing the same results to the trials at random, and told as `noise`.

const DEALS = 200;
const MOST_GROUPS = 5;
export const FEWEST = 10; // trials; of fewer nothing can be said

// {share, noise, direction, groups, trials}: noise is what 95 in 100 random deals stay below; direction
// is Spearman's correlation for numbers, or null. Trials that lack the hyperparameter, and those whose
// value no other trial has, can't be compared and are left out. Null where nothing can be said.
export function importance(values, results) {
  const keys = groupKeys(values);
  const kept = keys.flatMap((key, place) => (key == null ? [] : [place]));
  const distinct = [...new Set(kept.map((place) => keys[place]))];
  const count = distinct.length;
  if (kept.length < FEWEST || count < 2 || count > kept.length / 2) return null;
  const ranks = ranksOf(kept.map((place) => results[place]));
  const groups = kept.map((place) => distinct.indexOf(keys[place]));
  return { share: explained(ranks, groups, count), noise: noiseOf(ranks, groups, count), groups: count, trials: kept.length,
    direction: directionOf(kept.map((place) => values[place]), ranks) };
}

// Ranks from 1; equal values share the mean of theirs.
export function ranksOf(values) {
  const order = values.map((_, place) => place).sort((one, other) => values[one] - values[other]);
  const ranks = new Array(values.length);
  for (let begin = 0; begin < order.length;) {
    let end = begin;
    while (end < order.length && values[order[end]] === values[order[begin]]) end += 1;
    for (let place = begin; place < end; place++) ranks[order[place]] = (begin + 1 + end) / 2;
    begin = end;
  }
  return ranks;
}

// The group of each trial; null where there is nothing like it.
function groupKeys(values) {
  const numbers = values.filter((value) => typeof value === "number");
  const parts = new Set(numbers).size > MOST_GROUPS ? Math.min(MOST_GROUPS, Math.floor(numbers.length / 5)) : 0;
  const ranks = ranksOf(numbers).values();
  const partOf = () => `part ${Math.min(parts - 1, Math.floor(((ranks.next().value - 0.5) / numbers.length) * parts))}`;
  const keys = values.map((value) => (parts && typeof value === "number" ? partOf() : JSON.stringify(value)));
  const sizes = new Map();
  for (const key of keys) sizes.set(key, (sizes.get(key) ?? 0) + 1);
  return keys.map((key) => (key !== undefined && sizes.get(key) > 1 ? key : null));
}

function explained(ranks, groups, count) {
  const mean = (ranks.length + 1) / 2;
  const [sums, sizes] = [new Array(count).fill(0), new Array(count).fill(0)];
  let whole = 0;
  ranks.forEach((rank, place) => {
    sums[groups[place]] += rank - mean;
    sizes[groups[place]] += 1;
    whole += (rank - mean) ** 2;
  });
  const between = sums.reduce((sum, one, group) => sum + (sizes[group] ? one ** 2 / sizes[group] : 0), 0);
  return whole ? between / whole : 0;
}

function noiseOf(ranks, groups, count) {
  const dealt = [...ranks];
  const random = seeded(7); // the same page says the same each time
  const shares = Array.from({ length: DEALS }, () => {
    for (let last = dealt.length - 1; last > 0; last--) {
      const other = Math.floor(random() * (last + 1));
      [dealt[last], dealt[other]] = [dealt[other], dealt[last]];
    }
    return explained(dealt, groups, count);
  });
  return shares.sort((one, other) => one - other)[Math.floor(0.95 * DEALS)];
}

function seeded(state) {
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function directionOf(values, ranks) {
  if (!values.every((value) => typeof value === "number")) return null;
  const mean = (ranks.length + 1) / 2;
  const others = ranksOf(values);
  const sum = (one, other) => one.reduce((total, rank, place) => total + (rank - mean) * (other[place] - mean), 0);
  return sum(ranks, others) / Math.sqrt(sum(ranks, ranks) * sum(others, others) || 1);
}
