/** One effect, which is one line of the journal. */
export type EffectEntry =
  | { readonly did: 'charge'; readonly id: string; readonly key: string; readonly asked: ChargeInput }
  | { readonly did: 'refund'; readonly id: string; readonly key: string; readonly charge: string }
  | { readonly did: 'open_ticket'; readonly id: string; readonly asked: TicketInput }
  | { readonly did: 'close_ticket'; readonly id: string }
  | { readonly did: 'put_file'; readonly name: string; readonly content: string }
  | { readonly did: 'delete_file'; readonly name: string }
  /** A null content removes the file. */
  | { readonly did: 'restore_file'; readonly name: string; readonly content: string | null }
  | { readonly did: 'send_mail'; readonly id: string; readonly to: string; readonly subject: string };

export interface ChargeInput {
  readonly amount: number;
  readonly currency: string;
  readonly card: string;
  readonly order?: string | undefined;
}

export interface TicketInput {
  readonly title: string;
  readonly body?: string | undefined;
  readonly reference: string;
}

export interface Charge {
  readonly id: string;
  readonly asked: ChargeInput;
  refunded: boolean;
}

export interface Refund {
  readonly id: string;
  readonly charge: string;
  readonly amount: number;
}

export interface Ticket extends TicketInput {
  readonly id: string;
  state: 'open' | 'closed';
}

/**
 * The state of the demo services, built from the lines of the journal in order. If two processes wrote a line for one key
 * at once, only the first one counts.
 */
export class ServiceState {
  readonly charges = new Map<string, Charge>();
  readonly chargeOfKey = new Map<string, Charge>();
  readonly refundOfKey = new Map<string, Refund>();
  readonly tickets = new Map<string, Ticket>();
  readonly files = new Map<string, string>();
  readonly #counts = {
    payments: { charges: 0, refunds: 0 },
    tickets: { opened: 0, closed: 0 },
    files: { puts: 0, deletes: 0, restores: 0 },
    mail: { sent: 0 },
  };

  /** How often each effect happened; tests compare these counts with the promises of the gateway. */
  copyEffectCounts(): object {
    return structuredClone(this.#counts);
  }

  apply(entry: EffectEntry): void {
    switch (entry.did) {
      case 'charge':
        this.#charge(entry);
        return;
      case 'refund':
        this.#refund(entry);
        return;
      case 'open_ticket':
        this.tickets.set(entry.id, { id: entry.id, ...entry.asked, state: 'open' });
        this.#counts.tickets.opened += 1;
        return;
      case 'close_ticket':
        this.#close(entry.id);
        return;
      case 'put_file':
        this.files.set(entry.name, entry.content);
        this.#counts.files.puts += 1;
        return;
      case 'delete_file':
        if (this.files.delete(entry.name)) this.#counts.files.deletes += 1;
        return;
      case 'restore_file':
        if (entry.content === null) this.files.delete(entry.name);
        else this.files.set(entry.name, entry.content);
        this.#counts.files.restores += 1;
        return;
      case 'send_mail':
        this.#counts.mail.sent += 1;
        return;
    }
  }

  #charge({ id, key, asked }: Extract<EffectEntry, { did: 'charge' }>): void {
    if (this.chargeOfKey.has(key)) return;
    const charge: Charge = { id, asked, refunded: false };
    this.charges.set(id, charge);
    this.chargeOfKey.set(key, charge);
    this.#counts.payments.charges += 1;
  }

  #refund({ id, key, charge: chargeId }: Extract<EffectEntry, { did: 'refund' }>): void {
    const charge = this.charges.get(chargeId);
    if (charge === undefined || charge.refunded) return;
    charge.refunded = true;
    this.refundOfKey.set(key, { id, charge: chargeId, amount: charge.asked.amount });
    this.#counts.payments.refunds += 1;
  }

  #close(id: string): void {
    const ticket = this.tickets.get(id);
    if (ticket === undefined || ticket.state === 'closed') return;
    ticket.state = 'closed';
    this.#counts.tickets.closed += 1;
  }
}
