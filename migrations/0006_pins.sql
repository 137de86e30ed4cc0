-- Tools of MCP servers as they were when they were first seen, or last accepted by a person. A server that later says
-- something else of a tool has it disabled: `offered` is what it says now, until somebody accepts it.

create table pins (
  upstream    text not null,
  tool        text not null,
  digest      bytea not null check (octet_length(digest) = 32),
  definition  text not null,
  pinned_at   timestamptz not null default now(),
  -- Null: nobody looked at it, it was the first that was seen.
  accepted_by text,
  offered_digest bytea check (octet_length(offered_digest) = 32),
  offered     text,
  offered_at  timestamptz,
  primary key (upstream, tool),
  constraint an_offer_is_whole check (
    (offered is null) = (offered_digest is null) and (offered is null) = (offered_at is null)),
  constraint an_offer_differs check (offered_digest <> digest)
);
