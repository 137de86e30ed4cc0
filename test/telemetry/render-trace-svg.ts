import type { CollectedSpan } from './collector.ts';

const WIDTH = 860;
const ROW_HEIGHT = 26;
const LEFT_MARGIN = 300;

/** Renders a trace as a chart: one bar per span, indented below its parent. */
export function renderTraceSvg(spans: readonly CollectedSpan[], title: string): string {
  const rows = orderAsTree(spans);
  const from = Math.min(...spans.map(({ start }) => start));
  const to = Math.max(...spans.map(({ end }) => end));
  const x = (at: number) => LEFT_MARGIN + ((at - from) / (to - from)) * (WIDTH - LEFT_MARGIN - 80);
  const bars = rows.map(({ span, depth }, row) => {
    const y = 44 + row * ROW_HEIGHT;
    const [left, right] = [x(span.start), x(span.end)];
    const label = escapeXml(formatLabel(span));
    return [
      `<text x="${16 + depth * 16}" y="${y + 15}">${label}</text>`,
      `<rect class="${chooseCssClass(span)}" x="${left.toFixed(1)}" y="${y + 3}" width="${Math.max(2, right - left).toFixed(1)}" height="16" rx="3"/>`,
      `<text class="ms" x="${(right + 6).toFixed(1)}" y="${y + 15}">${(span.end - span.start).toFixed(1)} ms</text>`,
    ].join('\n');
  });
  const height = 56 + rows.length * ROW_HEIGHT;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${escapeXml(title)}">
<style>
  svg { background: #fff } text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2937 } .title { font-weight: 600 }
  .ms { font-size: 11px; fill: #6b7280 } .agent { fill: #94a3b8 } .call { fill: #2563eb } .undo { fill: #b45309 } .send { fill: #059669 } .part { fill: #93c5fd } .upstream { fill: #a78bfa }
  @media (prefers-color-scheme: dark) { svg { background: #0f172a } text { fill: #e5e7eb } .ms { fill: #9ca3af } .part { fill: #1d4ed8 } }
</style>
<text class="title" x="16" y="26">${escapeXml(title)}</text>
${bars.join('\n')}
</svg>
`;
}

function orderAsTree(spans: readonly CollectedSpan[]): { span: CollectedSpan; depth: number }[] {
  const ids = new Set(spans.map(({ spanId }) => spanId));
  const below = (parent: string | undefined, depth: number): { span: CollectedSpan; depth: number }[] =>
    spans
      .filter(({ parentSpanId }) => (parent === undefined ? !ids.has(parentSpanId ?? '') : parentSpanId === parent))
      .sort((a, b) => a.start - b.start)
      .flatMap((span) => [{ span, depth }, ...below(span.spanId, depth + 1)]);
  return below(undefined, 0);
}

function formatLabel({ name, attributes }: CollectedSpan): string {
  const stage = attributes['oncegate.stage'];
  if (stage === 'undo') return `undo: ${name}`;
  if (stage === undefined || stage === 'call') return name;
  return String(stage);
}

function chooseCssClass({ attributes, name }: CollectedSpan): string {
  const stage = attributes['oncegate.stage'];
  if (stage === 'call' || stage === 'undo' || stage === 'send') return stage;
  if (stage !== undefined) return 'part';
  return name.startsWith('agent') ? 'agent' : 'upstream';
}

function escapeXml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;');
}
