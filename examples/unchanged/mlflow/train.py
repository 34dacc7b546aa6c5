"""A scikit-learn script with MLflow's autologging."""

import os

import click
import joblib
import mlflow
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss


@click.command()
@click.option("--alpha", default=1e-4)
@click.option("--penalty", type=click.Choice(["l1", "l2"]), default="l2")
@click.option("--epochs", default=100)
def main(alpha, penalty, epochs):
    mlflow.autolog(log_models=False)
    x, y = load_digits(return_X_y=True)
    x /= 16
    with mlflow.start_run():
        mlflow.log_params({"alpha": alpha, "penalty": penalty})
        begin, model = 0, SGDClassifier("log_loss", alpha=alpha, penalty=penalty, random_state=1)
        if os.path.exists("models/last.joblib"):
            begin, model = joblib.load("models/last.joblib")
            print("resuming at epoch", begin, flush=True)
        os.makedirs("models", exist_ok=True)
        for epoch in range(begin, epochs):
            model.partial_fit(x[:1500], y[:1500], classes=range(10))
            loss = log_loss(y[1500:], model.predict_proba(x[1500:]))
            mlflow.log_metric("val_loss", loss, step=epoch)
            joblib.dump((epoch + 1, model), "models/new.joblib")
            os.replace("models/new.joblib", "models/last.joblib")


if __name__ == "__main__":
    main()
