#!/bin/bash
#SBATCH --job-name={{ job.name }}
#SBATCH --nodes={{ job.nodes }}
#SBATCH --ntasks-per-node=1
{% for option in job.options %}
#SBATCH {{ option }}
{% endfor %}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# RUNTIME=podman, apptainer or enroot chooses one of several; CABLE names the interface that joins the nodes.
set -euo pipefail

RUNTIME=${RUNTIME:-$(command -v podman apptainer enroot | head -n 1 || true)}
export RUNTIME=${RUNTIME##*/}
export IMAGE={{ job.image }}
export MODELS={{ job.models | at_home }} CONTAINERS={{ job.name }}-$SLURM_JOB_ID
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head_node=${nodes%%$'\n'*}
{% if job.nodes > 1 %}
export CABLE=${CABLE:-{{ job.cable }}}
if [ -n "$CABLE" ]; then
    found=$(srun --nodes=1 --ntasks=1 --nodelist="$head_node" ip -4 -oneline address show dev "$CABLE")
    HEAD_ADDRESS=$(awk '{ sub("/.*", "", $4); print $4; exit }' <<< "$found")
else
    found=$(scontrol show node "$head_node" | grep --only-matching 'NodeAddr=[^ ]*')
    HEAD_ADDRESS=$(getent ahostsv4 "${found#NodeAddr=}" | awk '{ print $1; exit }')
fi
PAIR_SECRET=$(openssl rand -hex 32)
export HEAD_ADDRESS PAIR_SECRET
{% endif %}

# Ends what a node's task has left: a killed podman leaves its container, and if it was just replacing one, nobody else
# knows that one any more. Its monitor has the name, and does not outlive it.
end_container() {
    local monitor
    for monitor in $(pgrep --full "conmon .* -n $CONTAINERS-$SLURM_NODEID " || true); do
        pkill --signal KILL --parent "$monitor" || true
    done
}

serve() {
    set -euo pipefail
    trap : TERM # wait for the container, which gets the signal too
    name=$CONTAINERS-$SLURM_NODEID
    folder=$(umask 077; mktemp --directory)
    trap 'rm -rf "$folder"' EXIT
    settings=(
{% for setting, value in settings.items() %}
        {{ setting ~ "=" ~ value }}
{% endfor %}
    )
{% if job.nodes > 1 %}
    (umask 077; printf %s "$PAIR_SECRET" > "$folder/pair_secret")
    unset PAIR_SECRET
    settings+=("NODES=$SLURM_NNODES" "NODE_RANK=$SLURM_NODEID" "HEAD_ADDRESS=$HEAD_ADDRESS")
    settings+=(PAIR_SECRET_FILE=/run/factory/pair_secret ${CABLE:+"CABLE=$CABLE"})
{% endif %}
{% if key_file %}
    install --mode=600 {{ key_file }} "$folder/key"
    settings+=(VLLM_API_KEY_FILE=/run/factory/key)
{% endif %}
    mkdir --parents "$MODELS"
    mounts=("$MODELS:{{ job.model_cache }}" "$folder:/run/factory")
    volumes=({{ job.volumes | words }})
    case $RUNTIME in
    podman)
        # 30 s after its signal Slurm kills what is left: podman, but not the container, which is no child of it.
        trap '(sleep {{ job.patience }}; end_container) &' TERM
        end_container
        podman run --rm --replace --name "$name" {{ job.podman | words }} \
            "${mounts[@]/#/--volume=}" "${volumes[@]/#/--volume=}" \
            ${HF_TOKEN:+--env=HF_TOKEN} "${settings[@]/#/--env=}" "$IMAGE" &
        running=$!
        wait "$running" || wait "$running" # the first is interrupted by the signal
        ;;
    apptainer | enroot)
        # They have no volumes; what a node keeps is in the user's folder.
        for volume in "${volumes[@]}"; do
            kept=$HOME/.cache/imagefactory/${volume%%:*}/$SLURMD_NODENAME
            mkdir --parents "$kept"
            mounts+=("$kept:${volume#*:}")
        done
        if [ "$RUNTIME" = apptainer ]; then
            # Its option --env takes commas for the end of a value.
            for setting in "${settings[@]}"; do printf '%s=%q\n' "${setting%%=*}" "${setting#*=}"; done > "$folder/settings"
            [ -z "${HF_TOKEN:-}" ] || export APPTAINERENV_HF_TOKEN=$HF_TOKEN
            apptainer run --fakeroot --containall --writable-tmpfs {{ job.apptainer | words }} \
                "${mounts[@]/#/--bind=}" --env-file "$folder/settings" "docker://$IMAGE"
        else
            uri=docker://${IMAGE/\//#} # enroot 3 takes a digest in the place of a tag
            enroot import --output "$folder/image.sqsh" "${uri/@/:}"
            enroot create --force --name "$name" "$folder/image.sqsh"
            trap 'enroot remove --force "$name"; rm -rf "$folder"' EXIT
            enroot start --root --rw "${mounts[@]/#/--mount=}" ${HF_TOKEN:+--env=HF_TOKEN} "${settings[@]/#/--env=}" "$name"
        fi
        ;;
    *)
        echo "no podman, apptainer or enroot on $SLURMD_NODENAME" >&2
        return 67
        ;;
    esac
}
export -f end_container serve

echo "head: http://$head_node:{{ job.port }}/v1"
code=0
# Where one node ends, the others end themselves and say why; Slurm ends what is left after a minute.
srun --export=ALL --wait=60 bash -c serve || code=$?
[ "$RUNTIME" != podman ] || timeout --kill-after=5 20 srun --export=ALL --overlap bash -c end_container || true
case $code in
0 | 6[4-8] | 143) ;; # it was stopped, or refused to start, as it would again
*)
    if [ "${SLURM_RESTART_COUNT:-0}" -lt 5 ]; then
        echo "ended with code $code: the job starts again"
        scontrol requeue "$SLURM_JOB_ID"
    fi
    ;;
esac
exit "$code"
