// How much of the result a hyperparameter alone explains: eta squared of ranks. Trials are grouped by
// its value (numbers with many values into groups of about equal size), and the measure is the part
// of the variance of the results' ranks that lies between the groups: 0 is nothing, 1 is all. Ranks
// make it the same on any scale of the metric. Groups always differ a little by chance: how much is
// found by dealing the same results to the trials at random, and told as `noise`.

const DEALS = 200;
const MOST_GROUPS = 5;
export const FEWEST = 10; // trials; of fewer nothing can be said

// {share, noise, direction, groups}: noise is what 95 in 100 random deals stay below; direction
// is Spearman's correlation for numbers, or null. Null where nothing can be said.
export function importance(values, results) {
  if (results.length < FEWEST) return null;
  const { groups, count } = grouped(values);
  if (count < 2 || count > results.length / 2) return null;
  const ranks = ranksOf(results);
  const share = explained(ranks, groups, count);
  return { share, noise: noiseOf(ranks, groups, count), direction: directionOf(values, ranks), groups: count };
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

// The number of each trial's group.
function grouped(values) {
  const keys = values.map((value) => JSON.stringify(value) ?? "");
  const distinct = [...new Set(keys)];
  const numeric = values.every((value) => typeof value === "number");
  if (!numeric || distinct.length <= MOST_GROUPS) return { groups: keys.map((key) => distinct.indexOf(key)), count: distinct.length };
  const count = Math.min(MOST_GROUPS, Math.floor(values.length / 5));
  const groups = ranksOf(values).map((rank) => Math.min(count - 1, Math.floor(((rank - 0.5) / values.length) * count)));
  return { groups, count };
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
