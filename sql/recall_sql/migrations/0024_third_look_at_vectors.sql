-- A third look at vectors, for the few queries of which the first two found different things. Where the
-- lists of signs hold answers that the graph did not lead to, there are likely more in lists that were not
-- looked at. These are a query in twenty, and a few more of hard ones, and take four times as long.

-- The nearest as the vector index has them, in no order, or those of so many `candidates`, the nearest
-- by signs, that are let through. An index holds one passage of each text. One that the condition
-- leaves out counts if it holds for a copy of it. The vector index is asked again and again until there
-- are enough, or it has looked at as many as the settings of the caller allow. Copies are looked for by
-- a scalar subquery: `exists` would become a hash table of everything that the condition holds for.
drop function recall.nearest_by_index(integer, integer, recall.halfvec, text, text, integer, boolean);
create function recall.nearest_by_index(
    generation integer, dimension integer, wanted recall.halfvec, own text, of_copy text,
    most integer, candidates integer default null
) returns setof recall.near_passage language plpgsql stable as $$
declare
    passages text := format('recall.passage_%s', generation);
    source text := passages;
begin
    if candidates is not null then
        source := format(
            '(select s.* from %1$s s where s.is_representative
            order by (recall.binary_quantize(s.v::recall.halfvec(%2$s))::bit(%2$s))
                operator(recall.<~>) recall.binary_quantize($1)::bit(%2$s)
            limit %3$s)',
            passages, dimension, candidates
        );
    end if;
    return query execute format(
        'select coalesce(c.id, r.id), coalesce(c.entry_id, r.entry_id),
            coalesce(c.start_char, r.start_char), coalesce(c.length, r.length), r.text_hash,
            r.distance
        from (
            select p.id, p.entry_id, p.start_char, p.length, p.text_hash, %3$s as fits,
                p.v::recall.halfvec(%2$s) operator(recall.<=>) $1 as distance
            from %5$s p
            where p.is_representative and (
                %3$s or p.has_copies and (
                    select true from %1$s o where o.text_hash = p.text_hash and %4$s limit 1
                )
            )
            order by p.v::recall.halfvec(%2$s) operator(recall.<=>) $1
            limit $2
        ) r
        left join lateral (
            select o.id, o.entry_id, o.start_char, o.length
            from %1$s o
            where not r.fits and o.text_hash = r.text_hash and %4$s
            order by o.ts desc nulls last, o.id
            limit 1
        ) c on true',
        passages, dimension, own, of_copy, source
    )
    using wanted, most;
end
$$;

-- One passage of each text, the nearest first.
create function recall.nearest_of(found recall.near_passage[], most integer)
returns recall.near_passage[] language sql immutable as $$
    select array_agg(row(n.*)::recall.near_passage order by n.distance, n.id)
    from (
        select b.* from (
            select distinct on (u.text_hash) u.* from unnest(found) u
            order by u.text_hash, u.distance, u.id
        ) b
        order by b.distance, b.id
        limit most
    ) n
$$;

-- The nearest of all lists of signs, or of as many as hold a million passages: those of 640,000 are
-- compared and sorted in 100 ms and 64 MB.
create function recall.nearest_by_all_signs(
    generation integer, dimension integer, wanted recall.halfvec, own text, of_copy text, most integer
) returns setof recall.near_passage language plpgsql
set ivfflat.probes = 500
set ivfflat.iterative_scan = 'off'
set work_mem = '64MB'
as $$
declare
    passages constant float8 :=
        recall.estimated_rows(format('recall.passage_%s', generation)::regclass);
begin
    if passages > 1000000 then
        perform set_config('ivfflat.probes', ceil(500 * 1000000 / passages)::text, true);
    end if;
    return query select * from recall.nearest_by_index(
        generation, dimension, wanted, own, of_copy, most, candidates => 10000
    );
end
$$;

-- The nearest by both indexes. By signs, those that are nearest are compared by their vectors and come to
-- the others. Where there is no such index yet, the first look is all. `doubtful` if at least three of the
-- ten nearest are among those by signs and not among those of the graph (ops/bench/README.md says why
-- three).
drop function recall.nearest_by_indexes(integer, integer, recall.halfvec, text, text, integer);
create function recall.nearest_by_indexes(
    generation integer, dimension integer, wanted recall.halfvec, own text, of_copy text,
    most integer, out nearest recall.near_passage[], out doubtful boolean
) language plpgsql
set hnsw.ef_search = 800
set hnsw.iterative_scan = 'relaxed_order'
set hnsw.max_scan_tuples = 40000
set ivfflat.probes = 40
set ivfflat.iterative_scan = 'off'
as $$
declare
    by_graph constant recall.near_passage[] := array(
        select n from recall.nearest_by_index(generation, dimension, wanted, own, of_copy, most) n
    );
    candidates constant integer :=
        coalesce(nullif(current_setting('recall.sign_candidates', true), '')::integer, 1500);
begin
    if to_regclass(format('recall.passage_%s_signs', generation)) is null then
        nearest := recall.nearest_of(by_graph, most);
        doubtful := false;
        return;
    end if;
    nearest := recall.nearest_of(
        by_graph || array(
            select n from recall.nearest_by_index(
                generation, dimension, wanted, own, of_copy, most, candidates
            ) n
        ),
        most
    );
    doubtful := 3 <= (
        select count(*) from unnest(nearest[:10]) n
        where not exists (select from unnest(by_graph) g where g.text_hash = n.text_hash)
    );
end
$$;

-- The nearest passages, one for each text, whatever the filter lets through: few rows are read one by
-- one, many are looked for in the indexes, and an answer of theirs that is short is completed by
-- reading. One that is doubtful is replaced by reading what the filter lets through, or, where that is
-- much, completed by all signs. `way` says which it was. Volatile, as everything that calls
-- recall.expected_rows.
create or replace function recall.nearest_passages(
    generation integer, dimension integer, wanted recall.halfvec, f recall.search_filter,
    most integer, out nearest recall.near_passage[], out way text, out expected float8
) language plpgsql
set jit = off
as $$
declare
    own constant text := recall.passage_condition(f, 'p');
    of_copy constant text := recall.passage_condition(f, 'o');
    doubtful boolean;
begin
    expected := recall.expected_rows(
        format('select from recall.passage_%s p where %s', generation, own)
    );
    -- Measured (ops/bench/vectors.py): reading 40,000 rows takes 20 to 25 ms and is always right.
    if expected <= coalesce(nullif(current_setting('recall.scan_rows', true), '')::float8, 40000) then
        way := 'scan';
    else
        way := 'index';
        select i.nearest, i.doubtful into nearest, doubtful
        from recall.nearest_by_indexes(generation, dimension, wanted, own, of_copy, most) i;
        if coalesce(cardinality(nearest), 0) < most then
            way := 'index, completed by a scan';
        elsif not doubtful then
            return;
        elsif expected <= coalesce(
            nullif(current_setting('recall.doubt_scan_rows', true), '')::float8, 200000
        ) then
            way := 'index, replaced by a scan';
        else
            way := 'index, completed by all signs';
            nearest := recall.nearest_of(
                nearest || array(
                    select n from recall.nearest_by_all_signs(
                        generation, dimension, wanted, own, of_copy, most
                    ) n
                ),
                most
            );
            return;
        end if;
    end if;
    nearest := array(
        select n from recall.nearest_by_scan(generation, dimension, wanted, own, most) n
    );
end
$$;
