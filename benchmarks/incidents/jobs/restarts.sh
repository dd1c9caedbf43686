# Starts a training again when it fails, as people do by hand: the first tries really fail, the last goes through.
echo "start of the job on $(hostname)"
for try in 1 2 3; do
  if [ "$try" -lt 3 ]; then
    "$1" -c "
import sys
for step in range($try * 10, $try * 10 + 10): print(f'step {step} loss {2 - step / 40:.3f}', flush=True)
$2
"
  else
    "$1" -c "
for step in range(30, 80): print(f'step {step} loss {2 - step / 90:.3f}', flush=True)
print('Training completed.')
"
  fi
  status=$?
  [ "$status" = 0 ] && break
  echo "try $try ended with code $status, starting again"
done
exit $status
