type Colour = readonly [red: number, green: number, blue: number, alpha: number];

interface TextElement {
  readonly text: string;
  readonly ink: Colour;
  readonly grounds: readonly Colour[];
}

/** Runs in the page: reads the colour and the backgrounds of every element with text. */
export const READ_COLOURS = `(() => {
  const parse = (colour) => { const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  return [...document.querySelectorAll('body *')]
    .filter((element) => element.checkVisibility() && !element.closest('svg, [disabled]')
      && [...element.childNodes].some((node) => node.nodeType === 3 && node.nodeValue.trim() !== ''))
    .map((element) => {
      const grounds = [];
      for (let each = element; each !== null; each = each.parentElement) grounds.push(parse(getComputedStyle(each).backgroundColor));
      return { text: element.textContent.slice(0, 40), ink: parse(getComputedStyle(element).color), grounds };
    });
})()`;

/** The elements below the contrast of WCAG AA. */
export function findLowContrast(seen: readonly TextElement[]): string[] {
  return seen.flatMap(({ text, ink, grounds }) => {
    const ground = grounds.find(([, , , alpha]) => alpha === 1) ?? [255, 255, 255, 1];
    const ratio = computeContrastRatio(ink, ground);
    return ratio < 4.5 ? [`${text}: ${ratio.toFixed(2)}`] : [];
  });
}

function computeContrastRatio(a: Colour, b: Colour): number {
  const [high, low] = [computeLuminance(a), computeLuminance(b)].sort((x, y) => y - x);
  return ((high ?? 0) + 0.05) / ((low ?? 0) + 0.05);
}

function computeLuminance([red, green, blue]: Colour): number {
  const [r, g, b] = [red, green, blue].map((value) => {
    const share = value / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * (r ?? 0) + 0.7152 * (g ?? 0) + 0.0722 * (b ?? 0);
}
