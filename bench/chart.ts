import type { BenchResults, ResultLine } from './report.ts';

const WIDTH = 980;
const LEFT_MARGIN = 250;
const BAR_HEIGHT = 18;
const ROW_HEIGHT = 26;

/** Two panels of bars: calls per second with 64 in flight, first calls and replays. */
export function renderChart({ lines, rounds }: BenchResults): string {
  const busy = lines.filter((line) => line.atOnce !== 1);
  const max = Math.max(...busy.map((line) => line.most));
  const [first, replays] = [busy.filter(({ call }) => call === 'first'), busy.filter(({ call }) => call === 'replay')];
  const panels = [
    renderPanel('First calls', first, 84, max),
    renderPanel('Replays', replays, 134 + ROW_HEIGHT * first.length, max),
  ];
  const height = 190 + ROW_HEIGHT * busy.length;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" aria-labelledby="title desc">
  <title id="title">Calls per second, 64 in flight</title>
  <desc id="desc">${busy.map((line) => `${line.system}, ${line.call === 'first' ? 'first calls' : 'replays'}: ${line.perSecond}`).join('; ')}.</desc>
  <style>
    text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 14px; fill: #1f2430; }
    .title { font-size: 18px; font-weight: 600; }
    .panel { font-size: 15px; font-weight: 600; }
    .name { text-anchor: end; }
    .small { font-size: 12px; fill: #454d5e; }
    .own { fill: #7a6fb8; }
    .other { fill: #8b93a5; }
    .spread { stroke: #1f2430; stroke-width: 1.5; }
  </style>
  <!-- An opaque card, so that the picture looks the same on a light and on a dark page. -->
  <rect x="1" y="1" width="${WIDTH - 2}" height="${height - 2}" rx="14" fill="#fbfaf7" stroke="#c9c6bd"/>
  <text class="title" x="24" y="38">Calls per second, 64 in flight</text>
${panels.join('\n')}
  <text class="small" x="24" y="${height - 20}">Medians of ${rounds} alternating runs on one machine. The thin lines go from the slowest run to the fastest.</text>
</svg>
`;
}

function renderPanel(title: string, lines: readonly ResultLine[], top: number, max: number): string {
  const x = (perSecond: number) => LEFT_MARGIN + (perSecond / max) * (WIDTH - LEFT_MARGIN - 90);
  const bars = lines.map((line, i) => {
    const y = top + i * ROW_HEIGHT;
    const middle = y + BAR_HEIGHT / 2;
    const [from, to] = [x(line.least), x(line.most)].map((at) => at.toFixed(1));
    return `  <text class="name" x="${LEFT_MARGIN - 12}" y="${middle + 5}">${line.system}</text>
  <rect class="${line.system.startsWith('Oncegate') ? 'own' : 'other'}" x="${LEFT_MARGIN}" y="${y}" width="${(x(line.perSecond) - LEFT_MARGIN).toFixed(1)}" height="${BAR_HEIGHT}" rx="3"/>
  <path class="spread" d="M${from} ${middle} H${to}"/>
  <text class="small" x="${(x(line.most) + 8).toFixed(1)}" y="${middle + 4}">${line.perSecond.toLocaleString('en')}</text>`;
  });
  return [`  <text class="panel" x="24" y="${top - 12}">${title}</text>`, ...bars].join('\n');
}
