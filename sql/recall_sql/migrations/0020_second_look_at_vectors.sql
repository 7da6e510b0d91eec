-- A second look at vectors, by an index of the signs of their numbers. A graph of vectors has pockets
-- that no path leads to: where all answers to a query lie in one, the vector index finds none of them.
-- This index has lists of rows that are near to each other and no paths, and takes a bit for each number:
-- 40 MB where the graph takes 700.

-- How many passages there were when the index of signs was made; null where there is none.
alter table recall.embedding_generation add column signs_rows float8;

-- Make the index of signs where a generation has become large enough to need one, and again whenever it
-- has doubled, because the lists are those of what is there when it is made. The number of the
-- generation, or null where there is nothing to do. While it is made (5 s for 640,000 passages) vectors
-- wait to be stored, and searches go on.
create function recall.refresh_signs() returns integer
language plpgsql
set maintenance_work_mem = '64MB'
as $$
declare
    due record;
begin
    if not pg_try_advisory_xact_lock(7883960468427862126) then
        return null;
    end if;
    select g.number, g.dimension, r.passages into due
    from recall.embedding_generation g
    cross join lateral (
        select recall.estimated_rows(format('recall.passage_%s', g.number)::regclass) as passages,
            to_regclass(format('recall.passage_%s_signs', g.number)) is null as missing
    ) r
    where g.state <> 'retired'
        -- nearest_passages reads 40,000 rows one by one and needs no index for fewer
        and r.passages >= greatest(
            1, coalesce(nullif(current_setting('recall.signs_rows', true), '')::float8, 30000)
        )
        and (r.missing or r.passages >= 2 * coalesce(g.signs_rows, 0))
    order by g.state = 'active' desc, g.number
    limit 1;
    if due.number is null then
        return null;
    end if;
    -- 500 lists are made in 64 MB, which every server has, also one that a backup is restored on.
    execute format(
        'create index passage_%1$s_signs_new on recall.passage_%1$s
            using ivfflat (
                (recall.binary_quantize(v::recall.halfvec(%2$s))::bit(%2$s)) recall.bit_hamming_ops
            )
            with (lists = %3$s)
            where is_representative',
        due.number, due.dimension, least(500, greatest(1, due.passages / 100)::integer)
    );
    execute format('drop index if exists recall.passage_%s_signs', due.number);
    execute format(
        'alter index recall.passage_%1$s_signs_new rename to passage_%1$s_signs', due.number
    );
    update recall.embedding_generation g set signs_rows = due.passages where g.number = due.number;
    return due.number;
end
$$;
select recall.refresh_signs() from recall.embedding_generation;

-- The nearest as the vector index has them, in no order, or, if `signs`, those of the 1,500 nearest by
-- signs that are let through. An index holds one passage of each text. One that the condition leaves
-- out counts if it holds for a copy of it. The vector index is asked again and again until there are
-- enough, or it has looked at as many as the settings of the caller allow. Copies are looked for by a
-- scalar subquery: `exists` would become a hash table of everything that the condition holds for.
drop function recall.nearest_by_index(integer, integer, recall.halfvec, text, text, integer);
create function recall.nearest_by_index(
    generation integer, dimension integer, wanted recall.halfvec, own text, of_copy text,
    most integer, signs boolean
) returns setof recall.near_passage language plpgsql stable as $$
declare
    passages text := format('recall.passage_%s', generation);
    source text := passages;
begin
    if signs then
        source := format(
            '(select s.* from %1$s s where s.is_representative
            order by (recall.binary_quantize(s.v::recall.halfvec(%2$s))::bit(%2$s))
                operator(recall.<~>) recall.binary_quantize($1)::bit(%2$s)
            limit 1500)',
            passages, dimension
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

-- The nearest by both indexes. By signs, those that are nearest are compared by their vectors and come to
-- the others. Where there is no such index yet, the first look is all.
create function recall.nearest_by_indexes(
    generation integer, dimension integer, wanted recall.halfvec, own text, of_copy text, most integer
) returns recall.near_passage[] language plpgsql
set hnsw.ef_search = 800
set hnsw.iterative_scan = 'relaxed_order'
set hnsw.max_scan_tuples = 40000
set ivfflat.probes = 30
set ivfflat.iterative_scan = 'off'
as $$
declare
    nearest recall.near_passage[] := array(
        select n from recall.nearest_by_index(
            generation, dimension, wanted, own, of_copy, most, signs => false
        ) n
    );
begin
    if to_regclass(format('recall.passage_%s_signs', generation)) is null then
        return array(select n from unnest(nearest) n order by n.distance, n.id);
    end if;
    return array(
        select row(b.*)::recall.near_passage
        from (
            select distinct on (u.text_hash) u.*
            from (
                select * from unnest(nearest)
                union all
                select * from recall.nearest_by_index(
                    generation, dimension, wanted, own, of_copy, most, signs => true
                )
            ) u
            order by u.text_hash, u.distance, u.id
        ) b
        order by b.distance, b.id
        limit most
    );
end
$$;

-- The nearest passages, one for each text, whatever the filter lets through: few rows are read one by
-- one, many are looked for in the indexes, and an answer of theirs that is short is completed by
-- reading. `way` says which it was. Volatile, as everything that calls recall.expected_rows.
create or replace function recall.nearest_passages(
    generation integer, dimension integer, wanted recall.halfvec, f recall.search_filter,
    most integer, out nearest recall.near_passage[], out way text, out expected float8
) language plpgsql
set jit = off
as $$
declare
    own constant text := recall.passage_condition(f, 'p');
begin
    expected := recall.expected_rows(
        format('select from recall.passage_%s p where %s', generation, own)
    );
    -- Measured (ops/bench/vectors.py): reading 40,000 rows takes 20 to 25 ms and is always right.
    if expected <= coalesce(nullif(current_setting('recall.scan_rows', true), '')::float8, 40000) then
        way := 'scan';
    else
        way := 'index';
        nearest := recall.nearest_by_indexes(
            generation, dimension, wanted, own, recall.passage_condition(f, 'o'), most
        );
        if cardinality(nearest) >= most then
            return;
        end if;
        way := 'index, completed by a scan';
    end if;
    nearest := array(
        select n from recall.nearest_by_scan(generation, dimension, wanted, own, most) n
    );
end
$$;
